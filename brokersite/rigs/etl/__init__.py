"""The benchmark of the export."""
