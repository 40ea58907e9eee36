"""Fivewire's store, and everything that holds whatever the protocol is."""
