"""The web server's entry: ``daphne brokersite.asgi:application``, or any other ASGI server's."""

import os
import sys

from channels.routing import ProtocolTypeRouter
from django.conf import settings
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "brokersite.settings")

django = get_asgi_application()  # before the imports below: they need the applications to be loaded

from prometheus_client import REGISTRY  # noqa: E402

import brokersite.urls  # noqa: E402  # imports the pages before the first request
from brokersite.admission import PageScheduler  # noqa: E402
from brokersite.path_prefix import with_whole_path  # noqa: E402
from brokersite.workers import RequestThreads  # noqa: E402
from peers.metrics import PeersCollector  # noqa: E402
from peers.server import lifespan  # noqa: E402
from peers.server.consumer import PeerbusConsumer  # noqa: E402
from peers.service import PeerbusService, options_from_settings  # noqa: E402
from peers.session import PeerSession  # noqa: E402
from queues.config import extras  # noqa: E402
from queues.engine.api import spare_garbage_collector  # noqa: E402

if extras.installed("celery"):
    import brokersite.celery  # noqa: F401  # the application of the tasks that the admin publishes

if "daphne.server" in sys.modules:
    from peers.server.daphne import install

    install()

    from brokersite import httplimits

    httplimits.install()

service = PeerbusService(options_from_settings)
workers = RequestThreads(django, PageScheduler(settings.BROKER_ADMIN_BUSY_PERCENT))
lifespan.on_shutdown += [service.stop, workers.stop]
REGISTRY.register(PeersCollector(service))

# Peerbus is at /ws/peerbus, but its clients dial any path. The Origin is not checked, although the admin is on the
# same one: programs send none, and it protects nothing here, since peerbus looks at no cookie. A page elsewhere that a
# browser has open gets nowhere without a token of its own.
consumer = PeerbusConsumer.as_asgi(make_session=lambda transport, scope: PeerSession(transport, scope, service))
application = with_whole_path(
    ProtocolTypeRouter({"http": workers, "websocket": consumer, "lifespan": lifespan.application})
)

spare_garbage_collector()
