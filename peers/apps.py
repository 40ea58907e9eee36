"""The Django application ``peers``."""

from django.apps import AppConfig


class PeersConfig(AppConfig):
    """Peerbus, signed envelopes between peers over WebSockets."""

    name = "peers"
