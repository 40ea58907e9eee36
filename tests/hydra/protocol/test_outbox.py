"""Effects that wait until their state is on disk."""

from hydra.protocol.effects import ConnectIrc, Effect, LeaveIrc, Persist, Say, StoredNode, Transmit
from hydra.protocol.messages import Call
from hydra.protocol.outbox import MAX_HELD, Outbox

OLD = StoredNode("00000000000000aa")
NEW = OLD._replace(term=2)
CALL = Transmit((1,), Call(2), True)


def outbox() -> Outbox:
    return Outbox(OLD)


def test_without_a_write_everything_leaves_at_once() -> None:
    box = outbox()
    box.say(CALL)
    assert box.take() == [CALL]
    assert box.take() == []


def test_messages_after_a_write_wait_for_it() -> None:
    box = outbox()
    box.persist(NEW)
    box.say(CALL)
    assert box.take() == [Persist(1, NEW)]
    box.persisted(1)
    assert box.take() == [CALL]


def test_each_waits_for_its_own_write_only() -> None:
    box = outbox()
    box.persist(NEW)
    box.say(CALL)
    box.persist(NEW._replace(term=3))
    box.say(CALL._replace(links=(2,)))
    assert [type(each) for each in box.take()] == [Persist, Persist]
    box.persisted(1)
    assert box.take() == [CALL]
    box.persisted(2)
    assert box.take() == [CALL._replace(links=(2,))]


def test_state_on_disk_is_not_written_again() -> None:
    box = outbox()
    box.persist(OLD)
    assert box.take() == []
    box.persist(NEW)
    box.persist(NEW)
    assert box.take() == [Persist(1, NEW)]


def test_forwarded_messages_do_not_wait() -> None:
    box = outbox()
    box.persist(NEW)
    box.at_once(CALL)
    assert box.take() == [Persist(1, NEW), CALL]


def test_leaving_irc_waits_for_nothing_and_cancels_what_waits_for_irc() -> None:
    box = outbox()
    box.persist(NEW)
    waiting: list[Effect] = [ConnectIrc(), Say("JOIN #c", "m"), CALL]
    for effect in waiting:
        box.say(effect)
    box.at_once(LeaveIrc("x"))
    assert box.take() == [Persist(1, NEW), LeaveIrc("x")]
    box.persisted(1)
    assert box.take() == [CALL]


def test_a_disk_that_does_not_answer_is_noticed() -> None:
    box = outbox()
    box.persist(NEW)
    for _ in range(MAX_HELD):
        box.say(CALL)
    before = box.overfull
    box.say(CALL)
    assert (before, box.overfull) == (False, True)
    box.forget_held()
    box.take()
    box.persisted(1)
    assert box.take() == []
