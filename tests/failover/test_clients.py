"""Client programs while PostgreSQL is killed and started again: they go on by themselves."""

from __future__ import annotations

import contextlib

from brokersite.rigs.torture.database import KEY
from tests.failover.conftest import MakeServer
from tests.failover.servers import url
from tests.waiting import PATIENCE
from tests.wire.broker import Broker
from wire.blipmq.client import Client
from wire.sspq.client import Client as SspqClient


def test_clients_go_on_when_postgresql_is_killed(make_server: MakeServer) -> None:
    server = make_server()
    server.start()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(Broker(url(server)))
        blip = stack.enter_context(
            Client(*broker.blipmq, KEY, resend=True, timeout=PATIENCE)
        )
        simple = stack.enter_context(SspqClient(*broker.sspq, timeout=PATIENCE))
        subscription = blip.subscribe("killed")
        blip.publish("killed", b"before")
        blip.flush()
        simple.send(b"before")
        message = simple.receive(PATIENCE)
        assert message is not None
        assert message.payload == b"before"
        simple.confirm()
        server.kill()
        server.start()
        blip.publish("killed", b"after")
        blip.flush()
        bodies = set()
        while b"after" not in bodies:
            polled = blip.poll(subscription, timeout=PATIENCE)
            assert polled is not None
            bodies.add(polled.body)
            blip.ack(polled)
        assert b"before" in bodies
        simple.send(b"after")
        # The first one may come again: its confirmation was under way.
        while (message := simple.receive(PATIENCE)) is not None and message.payload != b"after":
            simple.confirm()
        assert message is not None
        simple.confirm()
