"""Fivewire's peerbus: signed envelopes between peers over WebSockets."""
