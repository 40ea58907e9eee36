"""The benchmark of peerbus."""
