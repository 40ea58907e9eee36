"""Definitions: queues, routes, periodic jobs and the rights of API keys as one JSON object, out and in.

Secrets are left out: an API key that is missing where definitions come in is named, and has to be made there. What
definitions do not name stays as it is. To bring the same definitions in again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, DataError, models, transaction

from queues.errors import BrokerError, OperationError
from queues.models import ApiKey, PeriodicJob, Queue, QueueKind, Route
from queues.operations.audit_log import declare, record, record_id
from queues.operations.keys import known_protocols, valid_patterns
from queues.operations.messages import get_queue
from queues.operations.periodic import FIELDS as PERIODIC_FIELDS
from queues.operations.periodic import add_periodic
from queues.operations.queues import POLICY, create_queue, policy_problems
from queues.operations.routes import add_route, normal_source, normal_target
from queues.permissions.rules import SYSTEM_PREFIX
from queues.schedules.planning import save_planned

M = TypeVar("M", Queue, PeriodicJob, ApiKey)

#: Version of the format. Other versions are refused.
VERSION = 1
#: The byte order mark that some editors put before the text.
BYTE_ORDER_MARK = "\ufeff"

KEY_FIELDS = ("protocols", "publish", "consume", "manage")
JOB_FIELDS = tuple(field for field in PERIODIC_FIELDS if field != "name")


class InvalidDefinitions(OperationError):
    """The definitions cannot be imported; the text names the place."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between definitions and the database: `add`, `change`, or `skip` for what cannot be done here."""

    action: str
    id: str
    detail: str = ""


def decode_definitions(data: bytes) -> str:
    """The text of a file of definitions: UTF-8, UTF-16 or UTF-32, with a byte order mark or without. Raises
    InvalidDefinitions."""
    try:
        return data.decode(json.detect_encoding(data))
    except UnicodeDecodeError as error:
        raise InvalidDefinitions(f"It is no JSON, which is UTF-8, UTF-16 or UTF-32: {error}.") from error


def parse_definitions(text: str) -> object:
    """The value of a text of definitions. Raises InvalidDefinitions."""
    try:
        return json.loads(text.removeprefix(BYTE_ORDER_MARK))
    except (ValueError, RecursionError) as error:
        raise InvalidDefinitions(f"It is no JSON: {error}.") from error


def export_definitions(using: str = DEFAULT_DB_ALIAS) -> dict[str, Any]:
    """All definitions. Times are seconds; system queues, mailboxes and subscriptions' queues are left out."""
    queues = Queue.objects.using(using).filter(kind=QueueKind.QUEUE).select_related("dead_letter_queue")
    jobs = PeriodicJob.objects.using(using).select_related("queue")
    keys = ApiKey.objects.using(using).filter(revoked_at=None)
    return {
        "version": VERSION,
        "queues": {queue.name: _values(queue, POLICY) for queue in queues if not queue.name.startswith(SYSTEM_PREFIX)},
        "routes": [[route.source, route.target] for route in Route.objects.using(using)],
        "periodic_jobs": {job.name: _values(job, JOB_FIELDS) for job in jobs},
        "api_keys": {key.name: _values(key, KEY_FIELDS) for key in keys},
    }


def import_definitions(given: object, by: str, *, dry_run: bool = False, using: str = DEFAULT_DB_ALIAS) -> list[Change]:
    """Import definitions in one transaction, recorded as done by `by`; returns the changes.

    With `dry_run` everything is done, checked and rolled back. Raises InvalidDefinitions; then nothing has changed. """
    sections = _sections(given)
    with transaction.atomic(using=using):
        declare(by, using)
        changes = [
            *_each(sections["queues"], lambda name, values: _import_queue(name, values, by, using)),
            *_each(sections["queues"], lambda name, values: _import_target(name, values, using)),
            *_import_routes(sections["routes"], using),
            *_each(sections["periodic_jobs"], lambda name, values: _import_job(name, values, using)),
            *_each(sections["api_keys"], lambda name, values: _import_key(name, values, using)),
        ]
        for change in changes:
            if change.action != "skip":
                record(by, change.action, change.id, change.detail, using)
        transaction.set_rollback(dry_run, using=using)
    return changes


def _values(row: models.Model, fields: tuple[str, ...]) -> dict[str, Any]:
    return {field: _plain(getattr(row, field)) for field in fields}


def _plain(value: Any) -> Any:
    """A value of a field as JSON has it: seconds for a time, its name for a queue."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.name if isinstance(value, Queue) else value


def _sections(given: object) -> dict[str, Any]:
    """The sections of definitions; those that are missing are empty."""
    empty: dict[str, Any] = {"queues": {}, "routes": [], "periodic_jobs": {}, "api_keys": {}}
    if not isinstance(given, Mapping) or given.get("version") != VERSION:
        raise InvalidDefinitions(f"Definitions are a JSON object with \"version\": {VERSION}.")
    if unknown := sorted(map(str, set(given) - set(empty) - {"version"})):
        raise InvalidDefinitions(f"There is no section {unknown[0]!r}; there are {', '.join(empty)}.")
    for name, default in empty.items():
        if not isinstance(given.get(name, default), type(default)):
            kind = "an object" if isinstance(default, dict) else "a list"
            raise InvalidDefinitions(f"{name}: it must be {kind}.")
    return empty | {name: given[name] for name in empty if name in given}


def _each(section: Mapping[str, Any], bring_in: Callable[[str, Any], Change | None]) -> Iterator[Change]:
    for name, values in section.items():
        try:
            change = bring_in(name, values)
        except ValidationError as error:
            texts = [f"{field}: {' '.join(problems)}" for field, problems in error.message_dict.items()]
            raise InvalidDefinitions(f"{name!r}: {' '.join(texts)}") from error
        except InvalidDefinitions:
            raise
        except (BrokerError, ValueError, DataError) as error:  # the last two: no text of PostgreSQL's
            raise InvalidDefinitions(f"{name!r}: {error}") from error
        if change is not None:
            yield change


def _parsed(model: type[models.Model], name: str, values: object, fields: tuple[str, ...]) -> dict[str, Any]:
    """The values of fields, of their types. Raises InvalidDefinitions."""
    if not isinstance(values, Mapping):
        raise InvalidDefinitions(f"{name!r}: it must be an object.")
    if unknown := sorted(map(str, set(values) - set(fields))):
        raise InvalidDefinitions(f"{name!r}: there is no {unknown[0]!r}; there are {', '.join(fields)}.")
    parsed: dict[str, Any] = {}
    for field, value in values.items():
        column = model._meta.get_field(field)
        if isinstance(column, models.ForeignKey):
            parsed[field] = value
            continue
        try:
            if isinstance(column, models.DurationField) and isinstance(value, int | float):
                value = timedelta(seconds=value)
            parsed[field] = column.to_python(value)  # type: ignore[union-attr]
        except (ValidationError, OverflowError, ValueError, TypeError) as error:
            text = " ".join(error.messages) if isinstance(error, ValidationError) else str(error)
            raise InvalidDefinitions(f"{name!r}: {field}: {text}") from error
    return parsed


def _import_queue(name: str, values: object, by: str, using: str) -> Change | None:
    policy = _parsed(Queue, name, values, POLICY)
    policy.pop("dead_letter_queue", None)  # set when all queues are there
    queue = _locked(Queue, name, using)
    if queue is None:
        return Change("add", record_id(create_queue(name, using=using, by=by, **policy)))
    if queue.kind != QueueKind.QUEUE or queue.is_system:
        raise InvalidDefinitions(f"{name!r}: it is the system's.")
    return _changed(queue, policy, using)


def _import_target(name: str, values: Mapping[str, Any], using: str) -> Change | None:
    """Set where a queue's dead letters go."""
    if "dead_letter_queue" not in values:
        return None
    target = values["dead_letter_queue"]
    queue = get_queue(name, using)
    return _changed(queue, {"dead_letter_queue": None if target is None else get_queue(str(target), using)}, using)


def _import_routes(given: list[Any], using: str) -> Iterator[Change]:
    there = set(Route.objects.using(using).values_list("source", "target"))
    for pair in given:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(end, str) for end in pair)):
            raise InvalidDefinitions(f"routes: {pair!r} is no pair of addresses.")
        try:
            if (normal_source(pair[0]), normal_target(pair[1])) not in there:
                route = add_route(pair[0], pair[1], using)
                there.add((route.source, route.target))
                yield Change("add", record_id(route))
        except (ValueError, DataError) as error:  # InvalidAddress, RouteError, no text of PostgreSQL's
            raise InvalidDefinitions(f"routes: {error}") from error


def _import_job(name: str, values: object, using: str) -> Change | None:
    fields = _parsed(PeriodicJob, name, values, JOB_FIELDS)
    if isinstance(fields.get("queue"), str):
        fields["queue"] = get_queue(fields["queue"], using)
    job = _locked(PeriodicJob, name, using)
    if job is None:
        if missing := [field for field in ("cron", "queue") if not fields.get(field)]:
            raise InvalidDefinitions(f"{name!r}: {missing[0]}: it is missing.")
        cron, queue = fields.pop("cron"), fields.pop("queue")
        return Change("add", record_id(add_periodic(name, cron, queue.name, using, **fields)))
    return _changed(job, fields, using)


def _import_key(name: str, values: object, using: str) -> Change | None:
    rights = _parsed(ApiKey, name, values, KEY_FIELDS)
    for field, given in rights.items():
        if not (isinstance(given, list) and all(isinstance(one, str) for one in given)):
            raise InvalidDefinitions(f"{name!r}: {field}: it must be a list of texts.")
        rights[field] = known_protocols(given) if field == "protocols" else valid_patterns(given)
    key = _locked(ApiKey, name, using)
    if key is None or key.revoked_at is not None:
        state = "revoked" if key is not None else "not here"
        return Change("skip", f"key:{name}", f"it is {state}; make it with: manage.py apikey create {name}")
    return _changed(key, rights, using)


def _locked(model: type[M], name: str, using: str) -> M | None:
    return model._default_manager.using(using).select_for_update(of=("self",)).filter(name=name).first()


def _changed(row: Queue | PeriodicJob | ApiKey, values: Mapping[str, Any], using: str) -> Change | None:
    """Update a row; None if no value differs. Raises ValidationError."""
    changed: dict[str, str] = {}
    for field, value in values.items():
        before = getattr(row, field)
        if before != value:
            setattr(row, field, value)
            changed[field] = f"{field} {_plain(before)} → {_plain(value)}"
    if not changed:
        return None
    if isinstance(row, Queue) and (problems := policy_problems(row)):
        raise ValidationError(problems)
    row.full_clean()
    if isinstance(row, PeriodicJob):
        save_planned(row, changed, using)
    else:
        row.save(using=using, update_fields=changed)
    return Change("change", record_id(row), ", ".join(changed.values()))
