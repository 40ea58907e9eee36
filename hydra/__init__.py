"""Fivewire's Hydra: a group of nodes that elects its leader."""
