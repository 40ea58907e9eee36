"""Test rigs and benchmarks: programs that load, break and measure the rest of the project."""
