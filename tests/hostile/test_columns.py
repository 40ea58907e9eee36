"""Every way by which a value of a program reaches a column: it is stored, or refused in words to the one who sent it.

A refusal leaves the caller's transaction as it was. What a task returns or raises fails that attempt at most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.test import override_settings
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.connection import Connection
from kombu.entity import Exchange
from kombu.entity import Queue as KombuQueue
from kombu.exceptions import ChannelError
from kombu.exceptions import EncodeError as KombuEncodeError

import queues.celery.transport  # noqa: F401 - makes fivewire:// known
from hydra.protocol.lines import E_RECV, passes
from hydra.storage.line_records import record
from peers.codec.envelope import Envelope, build, encode
from peers.codec.frames import Frame, Ignored, parse_frame
from peers.errors import InvalidEnvelope
from queues.api import Outgoing, publish, publish_many
from queues.celery.django_tasks.framework import task, task_backends
from queues.celery.django_tasks.running import Ending, run_task
from queues.celery.transport.errors import UnstorableTask
from queues.errors import BrokerError
from queues.formats.texts import is_storable
from queues.models import Message, Queue, TaskRun
from queues.operations.definitions import import_definitions
from queues.operations.jobs import write_log
from queues.operations.keys import create_key
from queues.operations.periodic import add_periodic
from queues.operations.queues import create_queue
from queues.operations.routes import add_route
from tests.hostile.unharmed import drawn
from tests.hostile.values import NUMBERS, UNSTORABLE, any_value
from tests.queues.celery.django_tasks.conftest import TASKS

#: Refusals: an error that is for people, or the one of Python's for a value of a wrong type.
REFUSALS = (BrokerError, InvalidEnvelope, ValidationError, TypeError, ChannelError, UnstorableTask, KombuEncodeError)
#: Kept values: what was found, numbers; and 16 MiB of the worst.
KEPT = [*UNSTORABLE, *NUMBERS, -(10**5000)]
LARGE = ["x" * (16 << 20), "\0" * (16 << 20), "\udcff" * (1 << 20), b"\0" * (16 << 20)]

#: There are ten times as many ways as another test of this folder has.
ten_times = settings(drawn, max_examples=10 * drawn.max_examples)

returned: Any = None


@task()
def give() -> Any:
    """Return what the test wants."""
    return returned


@task()
def fail() -> None:
    """Fail with it."""
    raise ValueError(returned)


@task()
def note(value: Any) -> None:
    """Take a value."""


def ends(call: Any, value: Any) -> None:
    """Enqueue a task and run it as a worker does: it ends, whatever it returns or raises."""
    global returned
    returned = value
    result = call.enqueue()
    ending, why = run_task(result.id, "worker", True, "default")
    run = TaskRun.objects.get(pk=result.id)
    assert run.finished_at is not None
    assert (run.status == "SUCCESSFUL") == (ending is Ending.DONE)
    assert len(why) <= 10_000


def defined(**values: Any) -> None:
    import_definitions({"queues": [{"name": "defined"} | values]}, by="test")


#: The ways through Django, by the column that they lead to.
WAYS: dict[str, Callable[[Any], object]] = {
    "message: payload": lambda value: publish("ways", value),
    "message: value of a header": lambda value: publish("ways", b"", headers={"name": value}),
    "message: name of a header": lambda value: publish("ways", b"", headers={value: 1}),
    "message: headers": lambda value: publish("ways", b"", headers=value),
    "message: key": lambda value: publish("ways", b"", key=value),
    "message: due_at": lambda value: publish("ways", b"", delay=value),
    "message: expires_at": lambda value: publish("ways", b"", ttl=value),
    "message: max_attempts": lambda value: publish("ways", b"", max_attempts=value),
    "message: id, by its priority": lambda value: publish("ways", b"", priority=value),
    "message: content": lambda value: publish("ways", b"", content_type=value),
    "message: payload of MessagePack": lambda value: publish("ways", packed(value), content_type="application/msgpack"),
    "message: the second of two": lambda value: publish_many("ways", [b"", Outgoing(body=b"", key=value)]),
    "message: queue": lambda value: publish(value, b""),
    "task: argument": lambda value: note.enqueue(value),
    "task: named argument": lambda value: note.enqueue(value=value),
    "task: queue": lambda value: note.using(queue_name=str_of(value)).enqueue(1),
    "task: return_value": lambda value: ends(give, value),
    "task: errors": lambda value: ends(fail, value),
    "queue: name": lambda value: create_queue(str_of(value)),
    "queue: max_length": lambda value: create_queue("made", max_length=int_of(value)),
    "queue: max_attempts": lambda value: create_queue("made", max_attempts=int_of(value)),
    "queue: message_ttl": lambda value: create_queue("made", message_ttl=int_of(value)),
    "queue: retry_backoff": lambda value: create_queue("made", retry_backoff=int_of(value)),
    "queue: overflow": lambda value: create_queue("made", overflow=str_of(value)),
    "definitions": lambda value: import_definitions(value, by="test"),
    "definitions: name": lambda value: defined(name=value),
    "definitions: max_length": lambda value: defined(max_length=value),
    "definitions: ack_timeout": lambda value: defined(ack_timeout=value),
    "periodic job: name": lambda value: add_periodic(str_of(value), "* * * * *", "ways"),
    "periodic job: cron": lambda value: add_periodic("made", str_of(value), "ways"),
    "periodic job: payload": lambda value: add_periodic("made", "* * * * *", "ways", payload=value),
    "periodic job: priority": lambda value: add_periodic("made", "* * * * *", "ways", priority=int_of(value)),
    "route: source": lambda value: add_route(str_of(value), "queue:ways"),
    "route: target": lambda value: add_route("topic:ways", str_of(value)),
    "API key: name": lambda value: create_key(str_of(value)),
    "API key: value": lambda value: create_key("made", str_of(value)),
    "API key: pattern": lambda value: create_key("made", publish=[str_of(value)]),
    "API key: protocol": lambda value: create_key("made", protocols=[str_of(value)]),
    "line from IRC": lambda value: said(value),
    "envelope of a client: id": lambda value: enveloped(id=str_of(value)),
    "envelope of a client: recipient": lambda value: enveloped(to=str_of(value)),
    "envelope of a client: sender": lambda value: enveloped(sender=str_of(value)),
    "envelope of a client: time": lambda value: enveloped(ts=str_of(value)),
    "envelope of a client: body": lambda value: enveloped(body=encode(value)),
    "envelope of a stranger: id": lambda value: received(id=value),
    "envelope of a stranger: recipient": lambda value: received(to=value),
    "envelope of a stranger: body": lambda value: received(body=value),
    "log line of a job": lambda value: write_log(Queue.objects.get(name="ways").pk, 1, str_of(value)),
}  # fmt: skip


def said(value: Any) -> None:
    """Record a line as a node does that has got it from IRC or from another node."""
    line = f"PRIVMSG #a :{str_of(value)}"
    if passes(line, E_RECV) and line.encode(errors="ignore").decode() == line:  # no node decodes others
        record("ways", "alpha", [(1, 1, line)])


def enveloped(**fields: Any) -> None:
    """Write an envelope as a client does: the broker takes it, and can store it."""
    given = {"sender": "alice", "to": "bob", "body": b"1", "secret": None} | fields
    stored(parse_frame(build(**given).text))


def received(**fields: Any) -> None:
    """Take an envelope as the broker does: it is ignored, for a reason, or can be stored."""
    given = {"protocol_version": "v1", "id": "id-1", "to": "bob"} | fields
    try:
        text = json.dumps(given, default=repr).encode()
    except ValueError:  # Python has no text for a number of 5,000 digits
        return
    frame = parse_frame(text)
    if isinstance(frame, Ignored):
        assert frame.reason
    else:
        stored(frame)


def stored(frame: Frame) -> None:
    assert isinstance(frame, Envelope)
    assert is_storable(frame.to)
    publish("ways", frame.text, key=frame.id)


def packed(value: Any) -> bytes:
    """A value as MessagePack, as far as it has a form there."""
    try:
        return bytes(msgpack.packb(value, unicode_errors="surrogatepass"))
    except (TypeError, ValueError, OverflowError):
        return b"\xc1"


def str_of(value: Any) -> str:
    return value if isinstance(value, str) else repr(type(value))


def int_of(value: Any) -> int:
    return value if isinstance(value, int) else 1


def in_words(error: Exception) -> None:
    """An error says something, and does not repeat all that was given."""
    assert 0 < len(str(error)) < 2000


def stored_or_refused(way: Callable[[Any], object], value: Any) -> None:
    """Go a way within a transaction, which is as it was if the value is refused; what was stored is taken back."""
    with transaction.atomic():
        before = Message.objects.count()
        try:
            way(value)
        except REFUSALS as error:
            in_words(error)
            assert Message.objects.count() == before  # the transaction is whole, too
        transaction.set_rollback(True)
    assert not connection.needs_rollback


@pytest.fixture
def ways(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("queues.celery.django_tasks.running.close_old_connections", lambda: None)  # the test has it
    create_queue("ways")
    with override_settings(TASKS=TASKS | {"default": TASKS["default"] | {"QUEUES": []}}):
        assert task_backends["default"].queues == set()
        yield


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("ways")
def test_a_kept_value_is_stored_or_refused_in_words(way: str) -> None:
    for value in KEPT:
        stored_or_refused(WAYS[way], value)


@pytest.mark.usefixtures("ways")
def test_16_mib_are_stored_or_refused_in_words_whichever_way_they_go() -> None:
    for n, way in enumerate(WAYS.values()):
        stored_or_refused(way, LARGE[n % len(LARGE)])


@pytest.mark.usefixtures("ways")
@ten_times
@given(st.sampled_from(sorted(WAYS)), any_value())
def test_a_drawn_value_is_stored_or_refused_in_words(way: str, value: Any) -> None:
    stored_or_refused(WAYS[way], value)


def sent(connection: Connection, value: Any, **options: Any) -> None:
    connection.Producer().publish(value, **({"routing_key": "ways"} | options))


#: The ways through kombu, as Celery goes them, by what of the message it is.
KOMBU: dict[str, Callable[[Connection, Any], object]] = {
    "body": sent,
    "text": lambda by, value: sent(by, value, content_type="text/plain"),
    "header": lambda by, value: sent(by, 1, headers={"mine": value}),
    "name of a header": lambda by, value: sent(by, 1, headers={value: 1}),
    "header of Celery's": lambda by, value: sent(by, 1, headers={"argsrepr": value, "kwargsrepr": value}),
    "id": lambda by, value: sent(by, 1, headers={"id": value}),
    "eta": lambda by, value: sent(by, 1, headers={"eta": value}),
    "correlation id": lambda by, value: sent(by, 1, correlation_id=value),
    "priority": lambda by, value: sent(by, 1, priority=value),
    "expiration": lambda by, value: by.default_channel.basic_publish(
        by.default_channel.prepare_message("1", properties={"expiration": value}), exchange="", routing_key="ways"
    ),
    "routing key": lambda by, value: sent(by, 1, exchange="amq.topic", routing_key=str_of(value)),
    "exchange": lambda by, value: sent(by, 1, exchange=str_of(value)),
    "name of a queue": lambda by, value: KombuQueue(str_of(value))(by.default_channel).declare(),
    "binding": lambda by, value: by.default_channel.queue_bind("ways", "amq.topic", str_of(value)),
    "name of an exchange": lambda by, value: Exchange(str_of(value))(by.default_channel).declare(),
    "argument of a queue": lambda by, value: by.default_channel.queue_declare(
        "declared", arguments={"x-message-ttl": value, "x-max-length": value, "x-expires": value}
    ),
}  # fmt: skip


@pytest.fixture
def kombu(database_url: str, transactional_db: None) -> Iterator[Connection]:
    create_queue("ways")
    with Connection("fivewire://" + database_url.partition("://")[2]) as made:
        yield made


def stored_or_refused_by(way: Callable[[Connection, Any], object], made: Connection, value: Any) -> None:
    """Go a way; the same connection takes the next message."""
    try:
        way(made, value)
    except REFUSALS as error:
        in_words(error)
    except UnicodeEncodeError:  # kombu's own, of a text that has no UTF-8
        assert way is KOMBU["text"]
    before = Message.objects.count()
    sent(made, "next")
    assert Message.objects.count() == before + 1


def test_kept_values_are_stored_or_refused_by_kombus_channel(kombu: Connection) -> None:
    for way in KOMBU.values():
        for value in KEPT:
            stored_or_refused_by(way, kombu, value)


def test_16_mib_are_stored_or_refused_by_kombus_channel(kombu: Connection) -> None:
    for n, way in enumerate(KOMBU.values()):
        stored_or_refused_by(way, kombu, LARGE[n % len(LARGE)])


@ten_times
@given(st.sampled_from(sorted(KOMBU)), any_value())
def test_a_drawn_value_is_stored_or_refused_by_kombus_channel(kombu: Connection, way: str, value: Any) -> None:
    stored_or_refused_by(KOMBU[way], kombu, value)
