"""IRC: the leader's connection, and the private messages that carry Hydra's lines."""
