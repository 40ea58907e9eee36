"""Consuming: messages in memory, how they are fetched, dispatched and taken back."""
