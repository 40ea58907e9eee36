"""The site's ASGI application with peerbus over Channels under daphne too, for `brokersite.rigs.peerbus.bench`."""

from brokersite.asgi import application
from peers.server import consumer

consumer.TRANSPORT = "not given"  # type: ignore[misc]  # a constant, but for this measurement

__all__ = ["application"]
