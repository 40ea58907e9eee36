"""SSPQ: one queue, one message at a time, over a TCP session (docs/protocols/sspq.md)."""
