"""Overhop against a running broker: an OK says what is in the store, also when the store takes only a part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.tables import altering
from tests.waiting import wait_until
from tests.wire.broker import Broker, Database
from tests.wire.overhop.peer import Peer, error_code, make_queue
from wire.overhop.codec.encoder import encode_value
from wire.overhop.codec.names import Code, Type


@contextmanager
def undeletable(store: Database, payload: bytes) -> Iterator[None]:
    """Within it a message with this payload cannot be removed."""
    store.execute(
        "create or replace function fail_on_poison() returns trigger language plpgsql as"
        " $$ begin raise 'this row fails' using errcode = '22012'; end $$"
    )
    store.execute(
        "create trigger poison before delete on queues_message for each row"
        f" when (old.payload = '\\x{payload.hex()}') execute function fail_on_poison()"
    )
    # What was delivered at once is not removed: that it is settled is noted.
    store.execute(
        "create or replace function fail_on_poisoned_segment() returns trigger language plpgsql as"
        " $$ begin if exists (select from queues_segment where first = new.first and bodies ="
        f" array['\\x{payload.hex()}'::bytea]) then raise 'this row fails' using errcode = '22012'; end if; return new;"
        " end $$"
    )
    store.execute(
        "create trigger poison before insert on queues_segmentsettlement for each row"
        " execute function fail_on_poisoned_segment()"
    )
    try:
        yield
    finally:
        for table in ("queues_message", "queues_segmentsettlement"):
            store.execute(altering(table, f"drop trigger poison on {table}"))


@pytest.mark.parametrize("audited", [False, True])
@pytest.mark.parametrize("with_result", [False, True])
def test_done_is_answered_err_for_a_job_that_the_store_cannot_settle_and_ok_for_the_others(
    worker: Peer, store: Database, audited: bool, with_result: bool
) -> None:
    queue = make_queue(worker, store, audited=audited)
    worker.subscribe(queue, 3)
    jids = worker.enqueue_many(queue, ["first", "poison", "last"])
    worker.quests(3)
    more: dict[str, object] = {"result": 1} if with_result else {}
    with undeletable(store, encode_value("poison")):
        rids = [worker.request(Type.DONE, {"jid": jid} | more) for jid in jids]
        answers = [worker.reply(rid) for rid in rids]
        worker.wait_for_stats(queue, completed=2, failed=1)
    assert [answer.t for answer in answers] == [Type.OK, Type.ERR, Type.OK]
    assert error_code(answers[1]) is Code.UNAVAILABLE
    assert "not removed" in worker.record(jids[1])["error"] or "not written" in worker.record(jids[1])["error"]


def test_goodbye_waits_until_the_jobs_of_an_audited_queue_are_back(
    broker: Broker, worker: Peer, store: Database
) -> None:
    queue = make_queue(worker, store, audited=True)
    plain = make_queue(worker, store)
    id = store.queue(queue)
    with Peer(broker.overhop) as leaver:
        leaver.subscribe(queue, 1)
        leaver.subscribe(plain, 1)
        worker.enqueue(queue, 1)
        worker.enqueue(plain, 1)
        leaver.quests(2)
        chain = f"queue:{queue}"
        wait_until(
            lambda: store.rows(
                "select 1 from queues_audit join queues_auditchain c on c.id = chain_id"
                " where c.name = %s and event = 'deliver'", chain,
            ), "the record of the delivery",
        )  # fmt: skip
        of_chain = "chain_id = (select id from queues_auditchain where name = %s)"
        [head] = store.rows(f"delete from queues_audithead where {of_chain} returning *", chain)
        rid = leaver.request(Type.GOODBYE)
        wait_until(lambda: store.states(store.queue(plain)) == {0: 1}, "the return of the plain queue's job")
        assert leaver.is_silent()
        assert store.states(id) == {1: 1}, "while the chain is broken nothing is written"
        store.execute("insert into queues_audithead values (%s, %s, %s, %s)", *head)
        assert leaver.reply(rid).t == Type.OK
        assert store.states(id) == {0: 1}
