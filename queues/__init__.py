"""The store and everything true whatever the protocol."""
