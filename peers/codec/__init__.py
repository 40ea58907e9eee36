"""Peerbus on the wire: frames, envelopes and signatures. No I/O."""
