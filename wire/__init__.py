"""Fivewire's raw TCP protocols, their listeners and the network kit."""
