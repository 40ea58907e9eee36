"""Publishing: where an address leads, how a batch is inserted, and the group commit."""
