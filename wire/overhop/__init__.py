"""Overhop: queues of jobs for workers that hold credits, over TCP (docs/protocols/overhop.md)."""
