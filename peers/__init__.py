"""Peerbus, signed envelopes between peers over WebSockets."""
