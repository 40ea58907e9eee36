"""Celery's broker in Fivewire's own store: a transport for kombu.

Any Celery project can use it, with or without Django; importing this package makes the URL scheme known::

    import queues.kombu

    app.conf.broker_url = "fivewire://user:password@host/database"

or, without an import, ``broker_transport = "queues.kombu:Transport"`` beside a ``postgresql://`` URL. A queue of
Celery's is a queue like any other, of the same name. docs/celery.md tells the rest.
"""

from kombu.transport import TRANSPORT_ALIASES

from queues.kombu.transport import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES["fivewire"] = "queues.kombu:Transport"
