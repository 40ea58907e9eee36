"""The tests that depend on a version, on each release that is supported: `make matrix`."""
