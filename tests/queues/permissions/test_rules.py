"""The table of what each protocol reaches, and what the patterns of an API key cover."""

from __future__ import annotations

import itertools

import pytest

from queues.engine.api import ANONYMOUS, Grant
from queues.permissions.rules import REACH, AddressKind, Operation, Protocol, covers, is_allowed, is_celery, kind_of

#: An address of each kind.
EXAMPLES = {
    AddressKind.QUEUE: ("queue", "orders"),
    AddressKind.TOPIC: ("topic", "prices"),
    AddressKind.PEER: ("peer", "bob"),
    AddressKind.CELERY: ("queue", "w1@host.celery.pidbox"),
    AddressKind.SYSTEM: ("queue", "_system"),
    AddressKind.MAILBOX: ("queue", "_peer/bob"),
    AddressKind.SUBSCRIPTION: ("queue", "_subscription/7/prices"),
    AddressKind.RESERVED: ("queue", "_other"),
    AddressKind.RESERVED_TOPIC: ("topic", "_prices"),
}
WIRE = (Protocol.OVERHOP, Protocol.BLIPMQ, Protocol.SSPQ, Protocol.PEERBUS, Protocol.HYDRA)

#: All that is allowed, by protocol and operation, kinds of addresses with spaces between them.
ALLOWED: dict[tuple[str, str], str] = {
    ("overhop", "see"): "queue celery system",
    ("overhop", "read"): "queue celery system",
    ("overhop", "publish"): "queue",
    ("overhop", "consume"): "queue celery system",
    ("overhop", "create"): "queue",
    ("overhop", "manage"): "queue celery",
    ("blipmq", "publish"): "topic reserved_topic",
    ("blipmq", "consume"): "topic reserved_topic",
    ("sspq", "publish"): "queue",
    ("sspq", "consume"): "queue",
    ("peerbus", "publish"): "queue topic peer",
    ("peerbus", "consume"): "peer",
    ("hydra", "publish"): "queue",
    ("hydra", "consume"): "queue",
    **{("celery", operation.value): "queue celery" for operation in Operation},
    **{("django", operation.value): "queue celery" for operation in Operation},
    ("django", "publish"): "queue celery topic reserved_topic",
    **{
        ("operator", operation): "queue celery topic reserved_topic peer system mailbox subscription reserved"
        for operation in ("see", "read", "manage")
    },
    ("operator", "publish"): "queue celery topic reserved_topic system subscription reserved",
    ("operator", "consume"): "queue celery",
    ("operator", "create"): "queue celery",
    ("route", "publish"): "queue celery topic reserved_topic peer",
    ("route", "consume"): "queue celery topic reserved_topic",
}


@pytest.mark.parametrize(("protocol", "operation", "kind"), list(itertools.product(Protocol, Operation, AddressKind)))
def test_every_protocol_reaches_what_is_listed_and_nothing_else(
    protocol: Protocol, operation: Operation, kind: AddressKind
) -> None:
    address, name = EXAMPLES[kind]
    assert kind_of(address, name) is kind
    listed = kind.name.lower() in ALLOWED.get((protocol.value, operation.value), "").split()
    assert is_allowed(protocol, operation, address, name) is listed


def test_no_wire_protocol_touches_a_mailbox_or_the_queue_of_a_subscription() -> None:
    for protocol, operation, kind in itertools.product(
        WIRE, Operation, (AddressKind.MAILBOX, AddressKind.SUBSCRIPTION, AddressKind.RESERVED)
    ):
        assert not is_allowed(protocol, operation, *EXAMPLES[kind])


def test_only_overhop_sees_the_systems_queue_and_no_protocol_changes_it() -> None:
    for protocol in WIRE:
        allowed = {operation for operation in Operation if is_allowed(protocol, operation, "queue", "_system")}
        sees = {Operation.SEE, Operation.READ, Operation.CONSUME}
        assert allowed == (sees if protocol is Protocol.OVERHOP else set())


def test_the_table_has_every_protocol() -> None:
    assert set(REACH) == set(Protocol)


@pytest.mark.parametrize(
    ("name", "celerys"),
    [
        ("fivewire", True),
        ("celery", True),
        ("celery@host", True),
        ("celeryev.3d2c", True),
        ("w1@host.celery.pidbox", True),
        ("9f-1.reply.celery.pidbox", True),
        ("w1@host.mine.pidbox", True),
        ("amq.gen-3d2c", True),
        ("celery-orders", False),
        ("fivewire2", False),
        ("orders", False),
        ("pidbox", False),
    ],
)
def test_queues_of_celerys_are_known_by_their_names(name: str, celerys: bool) -> None:
    assert is_celery(name) is celerys
    assert kind_of("topic", name) is AddressKind.TOPIC


@pytest.mark.parametrize(
    ("pattern", "name", "covered"),
    [
        ("*", "orders", True),
        ("*", "_system", True),
        ("*", "celery", False),
        ("*", "fivewire", False),
        ("*", "w1@host.celery.pidbox", False),
        ("c*", "celery", False),
        ("f*", "fivewire", False),
        ("[celery]*", "celery", False),
        ("?elery", "celery", False),
        ("celery", "celery", True),
        ("celery*", "celery@host", True),
        ("*.celery.pidbox", "w1@host.celery.pidbox", True),
        ("*.pidbox", "w1@host.celery.pidbox", True),
        ("celeryev.*", "celeryev.3d2c", True),
        ("fivewire", "fivewire", True),
        ("fivewire*", "fivewire", False),
        ("amq.gen-*", "amq.gen-3d2c", True),
        ("orders*", "orders.new", True),
        ("orders*", "order", False),
    ],
)
def test_a_pattern_covers_queues_of_celerys_only_if_it_names_them(pattern: str, name: str, covered: bool) -> None:
    assert covers((pattern,), "queue", name) is covered
    assert covers(("nothing", pattern), "queue", name) is covered
    assert not covers((), "queue", name)


def test_a_peer_is_covered_with_its_prefix() -> None:
    assert covers(("peer:b*",), "peer", "bob")
    assert covers(("*",), "peer", "celery")
    assert not covers(("b*",), "peer", "bob")


def test_a_topic_may_be_called_like_a_queue_of_celerys() -> None:
    assert ANONYMOUS.may(Protocol.BLIPMQ, Operation.PUBLISH, "topic", b"celery")


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'exchange'"):
        kind_of("exchange", "orders")


def test_a_client_without_a_key_does_not_reach_queues_of_celerys() -> None:
    for operation in Operation:
        assert not ANONYMOUS.may(Protocol.OVERHOP, operation, "queue", b"celery")
        assert ANONYMOUS.may(Protocol.OVERHOP, operation, "queue", b"orders")


def test_a_key_sees_what_one_of_its_lists_covers() -> None:
    grant = Grant(1, "app", (), ("in*",), ("out*",), ("mine*",))

    def allowed(name: bytes) -> set[str]:
        return {str(each) for each in Operation if grant.may(Protocol.OVERHOP, each, "queue", name)}

    assert allowed(b"in") == {"see", "publish"}
    assert allowed(b"out") == {"see", "read", "consume"}
    assert allowed(b"mine") == {"see", "create", "manage"}
    assert allowed(b"else") == set()


def test_the_answers_that_a_key_remembers_are_bounded_in_bytes() -> None:
    grant = Grant(1, "app", (), ("*",), ("*",), ())
    for n in range(3000):
        assert grant.may(Protocol.BLIPMQ, Operation.PUBLISH, "topic", b"%d" % n + b"x" * (2000 if n % 2 else 0))
    assert sum(len(asked[3]) for asked in grant._answers) < 1 << 20
