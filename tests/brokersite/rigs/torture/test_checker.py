"""The checker of `manage.py torture`: for every promise a history that keeps it and one that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokersite.rigs.torture.checker import check
from brokersite.rigs.torture.history import (
    Archived,
    Delivery,
    InjectedFault,
    InjectedFaultKind,
    MessageId,
    Publish,
    QueueRules,
    Recorded,
    RecordedConnection,
    RunHistory,
    Store,
    StoredMessage,
    StoredState,
    make_body,
    parse_body,
)
from queues.store.counts import QueueCounts

QUEUE = "q"
IN_FLIGHT = 2
KILL = InjectedFault(InjectedFaultKind.KILL, 5.0, 5.1, listener=0)
STOP = InjectedFault(InjectedFaultKind.STOP, 5.0, 5.1, listener=0)
DATABASE_KILL = InjectedFault(InjectedFaultKind.DATABASE_KILL, 5.0, 6.0)
FREEZE = InjectedFault(InjectedFaultKind.FREEZE, 5.0, 6.0)


class Scene:
    """A hand-made history of one queue, with one producer "p"; sequences stand for its messages."""

    def __init__(self, *faults: InjectedFault, retention: str = "full", timed: bool = False) -> None:
        self.history = RunHistory(faults=list(faults))
        self.store = Store()
        self.rules = [QueueRules(QUEUE, frozenset({"p"}), retention, timed)]
        self.published = 0
        self.connection = RecordedConnection("c", 0, 0.0)

    def connect(self, at: float, listener: int = 0) -> None:
        """The consumer's next connection."""
        self.connection = RecordedConnection("c", listener, at)

    def publish(
        self, sequence: int, at: float = 1.0, confirmed: float | None = 1.5, on: RecordedConnection | None = None
    ) -> None:
        self.history.publishes.append(Publish(MessageId("p", sequence), at, confirmed, on))

    def deliver(self, sequence: int, at: float = 2.0, **marks: bool) -> None:
        marks = marks or {"acked": True}
        self.history.deliveries.append(Delivery(QUEUE, MessageId("p", sequence), self.connection, at, **marks))

    def keep(self, sequence: int, state: StoredState = StoredState.READY, id: int | None = None) -> None:
        """It is in the store."""
        first = sequence if id is None else id
        self.store.messages.append(StoredMessage(QUEUE, MessageId("p", sequence), first, state))

    def archive(self, sequence: int, acknowledged: bool = True, id: int | None = None) -> None:
        message = MessageId("p", sequence) if self.rules[0].retention == "full" else None
        self.store.archive.append(Archived(QUEUE, sequence if id is None else id, acknowledged, message))

    def whole(self, sequence: int, at: float = 2.0) -> None:
        """Published, delivered, acknowledged and archived."""
        self.publish(sequence)
        self.deliver(sequence, at)
        self.archive(sequence)

    def names(self) -> list[str]:
        """The violations' names, with counts that fit the rows unless the scene gives others."""
        self.store.counts.setdefault(QUEUE, self._counts())
        return sorted(violation.name for violation in check(self.history, self.store, self.rules, IN_FLIGHT))

    def _counts(self) -> QueueCounts:
        by = {state: sum(m.state is state for m in self.store.messages) for state in StoredState}
        dead = by[StoredState.DEAD] + by[StoredState.DEAD_LEASED]
        rows, settled = len(self.store.messages), len(self.store.archive)
        return QueueCounts(
            by[StoredState.READY], by[StoredState.LEASED], by[StoredState.DELAYED], dead, rows + settled, settled
        )


def test_a_body_tells_whose_it_is() -> None:
    for sequence in range(300):
        message = MessageId("p", sequence)
        assert parse_body(make_body(message)) == message
    assert max(len(make_body(MessageId("p", n))) for n in range(300)) > 7000


@pytest.mark.parametrize("body", [b"", b"p/1", b"p/x/", make_body(MessageId("p", 1)) + b"x", b"\xff/1/"])
def test_a_foreign_body_belongs_to_no_client(body: bytes) -> None:
    assert parse_body(body).producer.startswith("unknown body")


def test_a_run_without_faults_in_which_all_goes_well_passes() -> None:
    scene = Scene()
    for sequence in range(3):
        scene.whole(sequence, at=2.0 + sequence)
    assert scene.names() == []


def test_a_confirmed_message_that_is_nowhere_is_lost() -> None:
    scene = Scene(KILL)
    scene.publish(0)
    assert scene.names() == ["lost"]


def test_a_message_that_was_not_confirmed_may_be_nowhere() -> None:
    scene = Scene(KILL)
    scene.publish(0, confirmed=None)
    assert scene.names() == []


def test_a_message_that_was_delivered_before_its_commit_is_lost() -> None:
    scene = Scene(KILL)
    scene.publish(0, confirmed=None)
    scene.deliver(0, acked=False)
    assert scene.names() == ["lost"]


def test_a_message_that_reached_only_one_of_a_topics_queues_is_lost() -> None:
    scene = Scene(KILL)
    scene.rules.append(QueueRules("other", frozenset({"p"}), "none"))
    scene.publish(0, confirmed=None)
    scene.deliver(0)
    scene.archive(0)
    scene.store.counts["other"] = QueueCounts()
    assert scene.names() == ["lost"]


def test_a_confirmed_message_in_the_dead_letters_is_not_lost() -> None:
    scene = Scene()
    scene.publish(0)
    scene.deliver(0, let_go=True)
    scene.keep(0, StoredState.DEAD)
    assert scene.names() == []


def test_a_dead_letter_that_no_consumer_has_returned_has_no_cause() -> None:
    scene = Scene()
    scene.publish(0)
    scene.deliver(0, acked=False)
    scene.keep(0, StoredState.DEAD)
    assert scene.names() == ["dead without a cause"]


def test_a_message_that_was_never_published_is_unexpected() -> None:
    scene = Scene()
    scene.deliver(9)
    scene.archive(9)
    assert scene.names() == ["unexpected"]


def test_a_message_in_a_queue_that_its_producer_does_not_feed_is_unexpected() -> None:
    scene = Scene()
    scene.rules = [replace(scene.rules[0], producers=frozenset({"other"}))]
    scene.whole(0)
    assert scene.names() == ["unexpected"]


def test_an_unknown_queue_is_named() -> None:
    scene = Scene()
    scene.store.messages.append(StoredMessage("elsewhere", MessageId("p", 0), 1, StoredState.DEAD))
    scene.store.counts[QUEUE] = QueueCounts()
    assert scene.names() == ["unknown queue"]


def repeated(
    *faults: InjectedFault, listener: int = 0, first: dict[str, bool] | None = None, timed: bool = False
) -> Scene:
    """Message 0 is delivered at 2, and at 7 on another connection."""
    scene = Scene(*faults, timed=timed)
    scene.publish(0)
    scene.connect(1.0, listener)
    scene.deliver(0, at=2.0, **(first or {"acked": True}))
    scene.connect(6.5)
    scene.deliver(0, at=7.0)
    scene.archive(0)
    return scene


@pytest.mark.parametrize("fault", [KILL, STOP, DATABASE_KILL], ids=str)
def test_a_fault_between_explains_that_a_message_comes_again(fault: InjectedFault) -> None:
    assert repeated(fault).names() == []


@pytest.mark.parametrize(
    "faults",
    [
        (),
        (FREEZE,),
        (replace(KILL, listener=1),),
        (replace(KILL, begin=0.5, end=0.6),),
        (replace(KILL, begin=8.0, end=8.1),),
        (replace(DATABASE_KILL, begin=0.1, end=0.9),),
    ],
    ids=["none", "freeze", "of another listener", "before", "after", "database, before it was published"],
)
def test_a_message_that_comes_again_without_a_cause_is_told(faults: tuple[InjectedFault, ...]) -> None:
    names = repeated(*faults).names()
    assert "given out again without a cause" in names


def test_an_acknowledgement_that_an_orderly_stop_had_read_is_not_forgotten() -> None:
    taken = {"acked": True, "taken": True}
    assert repeated(STOP, first=taken).names() == ["given out again without a cause"]
    assert repeated(KILL, first=taken).names() == []


def test_a_message_that_was_returned_comes_again() -> None:
    assert repeated(first={"let_go": True}).names() == []


def test_a_message_of_a_timed_queue_may_come_again() -> None:
    assert repeated(timed=True).names() == []


def test_faults_explain_only_so_many_repetitions() -> None:
    scene = Scene(KILL)
    for sequence in range(IN_FLIGHT + 1):
        scene.publish(sequence)
        scene.deliver(sequence, at=2.0 + sequence / 10)
    scene.connect(6.0)
    for sequence in range(IN_FLIGHT + 1):
        scene.deliver(sequence, at=7.0 + sequence / 10)
        scene.archive(sequence)
    assert scene.names() == ["given out again too often"]
    scene.history.faults.append(KILL)
    assert scene.names() == []


def test_a_message_that_overtakes_an_older_one_of_its_producer_is_out_of_order() -> None:
    scene = Scene()
    scene.whole(1, at=2.0)
    scene.whole(0, at=3.0)
    assert scene.names() == ["out of order"]


def test_order_is_that_of_each_connection_and_of_first_deliveries() -> None:
    scene = Scene()
    scene.whole(1, at=2.0)
    scene.connect(2.5)
    scene.whole(0, at=3.0)
    scene.publish(2)
    scene.deliver(2, at=4.0, let_go=True)
    scene.whole(3, at=5.0)
    scene.deliver(2, at=6.0)
    scene.archive(2)
    assert scene.names() == []


def test_messages_of_one_burst_have_the_order_of_their_connection() -> None:
    scene = Scene(KILL)
    scene.connect(6.0)
    again = scene.connection
    scene.connect(1.0)
    for sequence in range(2):
        scene.publish(sequence)
        scene.deliver(sequence, at=4.9)
        scene.archive(sequence)
    scene.connection = again
    scene.deliver(1, at=7.0)
    scene.history.deliveries.insert(0, scene.history.deliveries.pop())  # another client's come first
    assert scene.names() == []


def test_a_message_that_has_waited_through_a_fault_may_be_overtaken() -> None:
    for fault, names in ((KILL, []), (FREEZE, ["out of order"])):
        scene = Scene(fault)
        scene.connect(5.5)
        scene.whole(1, at=6.0)
        scene.whole(0, at=7.0)
        assert scene.names() == names


def test_a_message_that_another_listener_may_have_held_may_be_overtaken() -> None:
    for held, names in ((0.1, ["out of order"]), (0.3, [])):
        scene = Scene()
        scene.whole(2, at=1.5)
        scene.connect(1.0, listener=1)
        scene.whole(1, at=2.0)
        scene.publish(0, at=3.0 - held)
        scene.deliver(0, at=3.0)
        scene.archive(0)
        assert scene.names() == names


@pytest.mark.parametrize(
    ("confirmed", "reconnects", "names"),
    [(None, True, []), (1.4, True, []), (1.2, True, ["out of order"]), (None, False, ["out of order"])],
)
def test_a_producer_that_connects_anew_before_its_message_is_confirmed_may_overtake_it(
    confirmed: float | None, reconnects: bool, names: list[str]
) -> None:
    scene = Scene()
    first = RecordedConnection("p", 1, 0.0)
    scene.publish(0, at=1.1, confirmed=confirmed, on=first)
    scene.publish(1, at=1.3, on=RecordedConnection("p", 0, 1.2) if reconnects else first)
    for sequence in (1, 0):
        scene.deliver(sequence)
        scene.archive(sequence)
    assert scene.names() == names


def test_a_message_stored_twice_is_in_two_places() -> None:
    scene = Scene()
    scene.publish(0)
    scene.deliver(0, let_go=True)
    scene.keep(0, StoredState.DEAD, id=1)
    scene.keep(0, StoredState.DEAD, id=2)
    assert scene.names() == ["in two places"]


def test_a_database_that_dies_in_a_commit_may_have_stored_a_message_already() -> None:
    for confirmed, names in ((6.5, []), (1.5, ["in two places", "wrong number of archive rows"])):
        scene = Scene(DATABASE_KILL)
        scene.publish(0, confirmed=confirmed)
        scene.deliver(0, at=7.0)
        scene.deliver(0, at=8.0)
        scene.archive(0, id=1)
        scene.archive(0, id=2)
        assert scene.names() == names


@pytest.mark.parametrize("state", [StoredState.READY, StoredState.LEASED, StoredState.DELAYED])
def test_a_message_left_at_the_end_was_not_delivered(state: StoredState) -> None:
    scene = Scene()
    scene.publish(0)
    scene.keep(0, state)
    assert scene.names() == ["left undelivered"]


def test_a_message_that_was_settled_is_archived_once() -> None:
    scene = Scene(retention="metadata")
    scene.publish(0)
    scene.deliver(0)
    assert scene.names() == ["wrong number of archive rows"]
    scene.archive(0)
    del scene.store.counts[QUEUE]
    assert scene.names() == []
    scene.archive(0)
    del scene.store.counts[QUEUE]
    assert scene.names() == ["settled twice", "wrong number of archive rows"]


def test_the_archive_has_nothing_that_was_not_acknowledged() -> None:
    scene = Scene()
    scene.publish(0)
    scene.deliver(0, acked=False)
    scene.archive(0)
    assert scene.names() == ["archived and never acknowledged", "lost", "wrong number of archive rows"]


def test_the_archive_has_the_very_messages_that_were_acknowledged() -> None:
    scene = Scene()
    scene.whole(0)
    scene.publish(1)
    scene.deliver(1, at=3.0)
    scene.archive(0, id=77)
    assert "settled and not archived" in scene.names()


def test_a_message_that_ended_otherwise_than_by_acknowledgement_is_told() -> None:
    scene = Scene()
    scene.publish(0, confirmed=None)
    scene.archive(0, acknowledged=False)
    assert "finished without an acknowledgement" in scene.names()


def test_a_settled_message_is_not_in_the_store() -> None:
    scene = Scene(retention="metadata")
    scene.publish(0)
    scene.deliver(0, let_go=True)
    scene.keep(0, StoredState.DEAD, id=5)
    scene.archive(0, id=5)
    assert "settled and in the store" in scene.names()


def test_nothing_is_archived_where_nothing_is_to_be_kept() -> None:
    scene = Scene(retention="none")
    scene.publish(0)
    scene.deliver(0)
    assert scene.names() == []
    scene.archive(0)
    del scene.store.counts[QUEUE]
    assert scene.names() == ["archived though nothing is kept"]


@pytest.mark.parametrize(
    "counts",
    [QueueCounts(ready=1, published=1, settled=1), QueueCounts(published=2, settled=1)],
    ids=["state", "total"],
)
def test_counts_that_differ_from_the_rows_are_wrong(counts: QueueCounts) -> None:
    scene = Scene()
    scene.whole(0)
    scene.store.counts[QUEUE] = counts
    assert scene.names() == ["wrong counts"]


def test_a_queue_without_counts_is_told() -> None:
    scene = Scene()
    assert [v.name for v in check(scene.history, scene.store, scene.rules, IN_FLIGHT)] == ["no counts"]


def test_an_unexpected_client_error_fails_the_run() -> None:
    scene = Scene()
    scene.history.troubles.append("c0: ProtocolViolation: a delivery without a POLL")
    assert scene.names() == ["trouble"]


def test_a_violation_names_queue_and_messages_and_not_too_many() -> None:
    scene = Scene(KILL)
    for sequence in range(20):
        scene.publish(sequence)
    scene.store.counts[QUEUE] = QueueCounts()
    (violation,) = check(scene.history, scene.store, scene.rules, IN_FLIGHT)
    assert str(violation) == "lost in q: 20 (p/0, p/1, p/2, p/3, p/4, p/5, p/6, p/7, …)"


def audited(*events: str) -> Scene:
    """A message that is finished and a dead letter, whose record is right, and these events of the finished one."""
    scene = Scene()
    scene.rules = [QueueRules(QUEUE, frozenset({"p"}), "full", audited=True)]
    scene.whole(1)
    scene.publish(2)
    scene.deliver(2, let_go=True)
    scene.keep(2, StoredState.DEAD)
    for event in ("publish", "deliver", "return", "dead-letter"):
        scene.store.record.append(Recorded(QUEUE, event, 2))
    scene.store.record += [Recorded(QUEUE, event, 1) for event in events]
    return scene


def test_a_whole_record_is_right() -> None:
    assert audited("publish", "deliver", "settle").names() == []
    assert audited("publish", "deliver", "return", "deliver", "settle").names() == []
    assert audited("publish", "settle").names() == [], "the row of a delivery may be lost with its listener"
    assert audited("publish", "settle", "deliver").names() == [], "and be late with its connection"


@pytest.mark.parametrize(
    "events",
    [
        ("publish",), ("publish", "deliver"), ("return", "publish", "settle"), ("publish", "publish", "settle"),
        ("publish", "settle", "settle"), ("publish", "settle", "return"), ("deliver", "settle"), ("deliver",),
        ("publish", "deliver", "dead-letter"),
    ],
    ids="-".join,
)  # fmt: skip
def test_a_record_that_is_not_that_of_a_finished_message_is_wrong(events: tuple[str, ...]) -> None:
    assert audited(*events).names() == ["wrongly recorded"]


def test_a_message_without_a_record_and_a_record_without_a_message_are_wrong() -> None:
    assert audited().names() == ["not recorded"]
    scene = audited("publish", "deliver", "settle")
    scene.store.record += [Recorded(QUEUE, event, 3) for event in ("publish", "deliver")]
    assert scene.names() == ["recorded and nowhere"]
    scene.store.record += [Recorded("another", "publish", 4)]
    assert scene.names() == ["recorded and nowhere"]


def test_a_dead_letter_is_recorded_as_such() -> None:
    scene = audited("publish", "deliver", "settle")
    scene.store.record = [one for one in scene.store.record if one.event != "dead-letter"]
    assert scene.names() == ["wrongly recorded"]


def test_a_chain_that_does_not_follow_from_its_hashes_is_wrong() -> None:
    scene = audited("publish", "deliver", "settle")
    scene.store.unproven = [QUEUE]
    assert scene.names() == ["wrong chain"]


def test_of_a_queue_that_is_not_audited_no_record_is_wanted() -> None:
    scene = Scene()
    scene.whole(1)
    scene.store.unproven = [QUEUE]
    assert scene.names() == []
