"""A Hydra node without I/O: its lines, its states as tables, and the rules; `node.py` puts them together."""
