"""Processes: children, the end of a process, load of the machine's processors."""
