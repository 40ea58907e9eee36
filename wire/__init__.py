"""The raw TCP protocols and their shared listener."""
