"""Overhop on the wire: frames, requests and values. No I/O."""
