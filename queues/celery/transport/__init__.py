"""Celery's broker in Fivewire's own store: a transport for kombu.

Any Celery project can use it, with or without Django; importing this package makes the URL scheme known::

    import queues.celery.transport

    app.conf.broker_url = "fivewire://user:password@host/database"

or, without an import, ``broker_transport = "queues.celery.transport:Transport"`` beside a ``postgresql://`` URL.
The program ``celery`` knows the scheme by itself (`command.py`). A queue of Celery's is an ordinary queue of the
same name. docs/celery.md tells the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.transport import TRANSPORT_ALIASES

if TYPE_CHECKING:
    from queues.celery.transport.transport import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES["fivewire"] = "queues.celery.transport:Transport"


def __getattr__(name: str) -> Any:
    """The transport is imported when it is used: ``celery`` imports this package whatever its broker is."""
    if name == "Transport":
        from queues.celery.transport.transport import Transport

        return Transport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
