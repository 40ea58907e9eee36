"""The hot path: a durable store of messages in PostgreSQL that many connections share. `api.py` is its interface."""
