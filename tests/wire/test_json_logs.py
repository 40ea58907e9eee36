"""BROKER_LOG_FORMAT=json: lines of listeners have fields for the connection, the key, the queue and the message."""

from __future__ import annotations

from tests.brokersite.test_logs import objects
from tests.waiting import wait_until
from tests.wire.broker import KEY, Blip, Broker, Database, Sspq
from wire.blipmq import codec
from wire.sspq.codec import encode_send


def test_lines_name_connection_key_queue_address_and_reason(store: Database) -> None:
    with Broker(store, BROKER_LOG_FORMAT="json") as running:
        with store.refusing(b"bad"), Sspq(running.sspq) as client:
            client.send(encode_send(b"bad", 3))
            assert client.rest() == b""
        with store.refusing(b"bad"), Blip(running.blipmq) as client:
            client.subscribe(b"named")
            [refused] = client.ask(codec.encode_publish(5, 1, b"named", b"bad"))
            assert refused.kind == codec.NACK
        with Blip(running.blipmq) as client:
            client.send(b"\xff" * 64)
            client.rest()
        wait_until(lambda: "blipmq closed 1 connection(s)" in running.log)
        assert running.stop() == 0
        lines = objects(running.log)
    [lost] = [line for line in lines if "was not stored" in line["message"]]
    assert (lost["listener"], lost["address"], lost["reason"]) == ("sspq", "127.0.0.1", "unstored")
    failed = [line for line in lines if "one publish failed" in line["message"]]
    assert [line["address"] for line in failed] == ["queue:sspq", "topic:named"]
    assert failed[1]["key"] == store.value("select id from queues_apikey where name = %s", KEY)
    [closed] = [line for line in lines if "blipmq closed 1 connection(s)" in line["message"]]
    assert (closed["listener"], closed["address"], closed["reason"]) == ("blipmq", "127.0.0.1", "protocol")


def test_a_message_that_costs_itself_is_named_by_its_id(store: Database) -> None:
    """A delivery that the database refuses to settle: the line has the ids as values, not in words only."""
    with Broker(store, BROKER_LOG_FORMAT="json") as running:
        with Blip(running.blipmq) as client:
            subscription = client.subscribe(b"named")
            client.publish(b"named", b"x")
            delivery = client.next(subscription)
            store.execute(
                "create or replace function refuse_all() returns trigger language plpgsql as $$ begin"
                " raise exception 'refused' using errcode = 'data_exception'; end $$"
            )
            store.execute(
                "create trigger refuse before insert on queues_archivedmessage for each row"
                " execute function refuse_all()"
            )
            try:
                client.send(codec.encode_ack(delivery.cid, subscription))
                wait_until(lambda: "one settlement failed" in running.log, lambda: running.log)
            finally:
                store.execute("drop trigger refuse on queues_archivedmessage")
        assert running.stop() == 0
        [line, *_] = [line for line in objects(running.log) if "one settlement failed" in line["message"]]
    assert isinstance(line["message_id"], int)
