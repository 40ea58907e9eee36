"""What monitors ask of a process: readiness and metrics."""
