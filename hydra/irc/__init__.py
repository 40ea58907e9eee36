"""IRC: the leader's connection, and what carries Hydra's lines over private messages."""
