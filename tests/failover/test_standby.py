"""A primary that dies under load, and a standby that takes its place: `DATABASE_URL` names both hosts."""

from __future__ import annotations

import json
import re

from brokersite.rigs.torture.database import KEY
from tests.failover.conftest import MakeServer
from tests.failover.load import Load
from tests.failover.servers import notes, page, url, wait_ready, wait_unready
from tests.waiting import wait_until
from tests.wire.broker import Blip, Broker
from wire.blipmq import codec as blipmq

TOPIC = b"failover"
STATUS = ("--status", "127.0.0.1:0")
#: More statements than PostgreSQL logs ids ahead for, so that a promoted standby gives some of them again.
MANY = 40
BODIES = "select min(id), max(id), count(*) from queues_openmessage where convert_from(payload, 'UTF8') like %s"


def test_a_synchronous_standby_that_is_promoted_under_load_takes_over_without_a_restart_and_nothing_is_lost(
    make_server: MakeServer,
) -> None:
    primary, standby = make_server(), make_server()
    primary.start(synchronous_standby_names="other")
    standby.start_as_standby(primary, "other")
    primary.wait_for("select exists (select from pg_stat_replication where sync_state = 'sync')")
    with Broker(url(primary, standby), *STATUS) as broker, Load(broker) as load:
        load.wait_for_more()
        primary.kill()
        wait_unready(broker, "read-only")
        standby.promote()
        wait_ready(broker)
        load.wait_for_more()
        load.check_nothing_is_lost()
        assert "another timeline" in broker.log
        assert notes(broker) == [], "what was confirmed is there"


def test_no_message_counts_as_lost_after_a_planned_switchover_under_load(make_server: MakeServer) -> None:
    primary, standby = make_server(), make_server()
    primary.start()
    standby.start_as_standby(primary, "other")
    with Broker(url(primary, standby), *STATUS) as broker, Load(broker) as load:
        load.wait_for_more()
        primary.stop_cleanly()
        standby.promote()
        wait_ready(broker)
        load.wait_for_more()
        load.check_nothing_is_lost()
        assert "another timeline" in broker.log
        assert notes(broker) == []
        assert '\nfivewire_trouble{what="history"} 0.0\n' in page(broker, "/metrics")[1]


def test_the_operator_is_told_of_an_asynchronous_standby_that_lacks_messages_and_old_acknowledgements_settle_no_new_one(
    make_server: MakeServer,
) -> None:
    primary, standby = make_server(), make_server()
    primary.start()
    standby.start_as_standby(primary, "other")
    with Broker(url(primary, standby), *STATUS) as broker, Blip(broker.blipmq, KEY) as client:
        subscription = client.subscribe(TOPIC)
        client.publish(TOPIC, b"kept")
        held = [client.next(subscription)]
        primary.wait_for("select replay_lsn >= pg_current_wal_lsn() from pg_stat_replication")
        standby.rows("alter system set primary_conninfo = ''")
        standby.rows("select pg_reload_conf()")
        primary.wait_for("select not exists (select from pg_stat_replication)")
        for n in range(MANY):
            client.publish(TOPIC, b"lost %d" % n)
            held.append(client.next(subscription))
        ((_, last, count),) = primary.rows(BODIES, "lost %")
        assert count == MANY
        primary.kill()
        standby.promote()
        wait_until(lambda: "the database has another past" in broker.log, lambda: broker.log)
        wait_ready(broker)

        new = [b"new %d" % n for n in range(MANY)]
        for body in new:
            client.publish(TOPIC, body)
        ((first, _, _),) = standby.rows(BODIES, "new %")
        assert first > last, "an id is given again"
        client.ask(*(blipmq.encode_ack(delivery.cid, subscription) for delivery in held))
        assert client.consume(subscription, MANY + 1) == [b"kept", *new]

        status, answer = page(broker, "/readyz")
        assert status == 200
        [note] = json.loads(answer)["notes"]
        assert "another timeline" in note
        assert re.search(r"may be lost from \d{4}-\d\d-\d\d [\d:.]+ UTC on", note), note
        assert "\nfivewire_rewritten_total 1.0\n" in page(broker, "/metrics")[1]
        events = "select event from queues_audit join queues_auditchain c on c.id = chain_id where name = 'operators'"
        wait_until(lambda: ("history-rewritten",) in standby.rows(events), "a row of the audit chain for operators")
