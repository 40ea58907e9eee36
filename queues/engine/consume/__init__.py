"""Consuming: what is prefetched into memory, how it is fetched, dispatched and taken back."""
