"""Settling: acknowledgements, returns and dead letters, written in batches."""
