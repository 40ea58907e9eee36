"""What is to be changed in a server, a schema and settings: findings of `manage.py doctor`, in sentences.

A question that another part asks already is asked there: system checks, the start of an engine, /readyz, the problems
of the admin's front page. What only the server knows of itself is one query, sql/doctor.sql.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import psycopg
from django.core.checks import INFO, run_checks
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections

from queues.database.hosts import is_here
from queues.engine.api import CONNECTIONS, EngineError, absence, options_from_settings, probe
from queues.errors import WrongEncoding
from queues.formats.cron import timezone_problem
from queues.models import ApiKey, EtlSchedule, PeriodicJob
from queues.monitoring.health import readiness
from queues.operations.monitor import StateReader
from queues.operations.state import Problem
from queues.store.queries import query

#: The newest major version of PostgreSQL that the tests know.
NEWEST_SERVER: Final = 18
#: Connections of the site: four stay open, and one is for a request more.
OF_THE_SITE: Final = 5
#: Dead rows of a table that are worth a word; bytes of one that may be empty for the most part; of WAL kept for a slot.
DEAD_ROWS, BLOAT, KEPT_WAL = 100_000, 256 << 20, 1 << 30
#: Seconds that two clocks may differ beside the time that asking takes.
CLOCKS = 2.0
#: Seconds under which a limit of Django's sessions cuts off what they have to do. 0 is no limit.
LIMITS: Final = {
    "statement_timeout": (300, "exports, bulk operations and migrations"),
    "transaction_timeout": (300, "exports, bulk operations and migrations"),
    "lock_timeout": (5, "what operators do while queues are emptied"),
    "idle_in_transaction_session_timeout": (60, "a page or a task that computes between two statements"),
    "idle_session_timeout": (120, "connections that the site and Celery keep for the next request"),
}
SETTINGS: Final = ("autovacuum", "track_counts", "synchronous_standby_names", *LIMITS)
#: Problems of the front page that are of the server and the schema.
OF_THE_PAGE: Final = {"chain", "disk", "holder", "note", "restarts", "standby"}
GIB = 1 << 30

Facts = dict[str, Any]


def examine(using: str = DEFAULT_DB_ALIAS) -> list[Problem]:
    """All findings, the worst first; those that are a `notice` may be as they are meant to be.

    What cannot be asked, because an earlier question has a bad answer, is left out.
    """
    found = list(_checks(using))
    refused = any(problem.kind.startswith("fivewire.E") for problem in found)
    if connections[using].vendor != "postgresql":
        return found
    try:
        connections[using].ensure_connection()
    except (OperationalError, WrongEncoding) as error:
        if not refused:
            advice = "Start it, or correct the address, user and password that the settings have for it."
            found.append(Problem("database", absence(error), advice))
        return found
    found += _of_server(using)
    missing = [Problem("migrations", reason, "Nothing else of the schema was asked.") for reason in _unready()]
    found += missing or [*(() if refused else _of_engine()), *_of_schema(using)]
    return sorted(found, key=lambda problem: problem.notice)


def _checks(using: str) -> Iterator[Problem]:
    """What the system checks of Fivewire find, those of a deployment too."""
    for message in run_checks(databases=[using], include_deployment_checks=True):
        if (kind := message.id or "").startswith(("fivewire.", "wire.")):
            yield Problem(kind, str(message.msg), message.hint or "", notice=message.level <= INFO)


def _unready() -> list[str]:
    """The reasons of /readyz, which in a process without an engine are those of the database and its migrations."""
    return asyncio.run(readiness()).reasons


def _of_engine() -> Iterator[Problem]:
    """What an engine would refuse to start with."""
    try:
        asyncio.run(probe(options_from_settings("doctor")))
    except (EngineError, WrongEncoding, psycopg.Error) as error:
        yield Problem(
            "engine", f"No engine can start on this database: {absence(error, 'it refuses a connection')}",
            "Until this is changed neither runwire nor peerbus works.",
        )  # fmt: skip


def _of_server(using: str) -> Iterator[Problem]:
    """What the server and this session say of themselves."""
    began = time.time()
    [(facts,)] = query("doctor", using, names=list(SETTINGS), dead=DEAD_ROWS, bloat=BLOAT, kept=KEPT_WAL)
    facts["asked"] = began, time.time()
    facts["info"] = connections[using].connection.info
    questions: Sequence[Callable[[Facts], Iterator[Problem]]] = (
        _standby, _connections, _vacuum, _tables, _wal, _clocks, _search_path, _limits, _pooler, _tls, _version, _sight,
    )  # fmt: skip
    for ask in questions:
        yield from ask(facts)


def _standby(facts: Facts) -> Iterator[Problem]:
    if facts["recovering"]:
        yield Problem(
            "standby-server", "The server is a standby, and takes no writes.",
            "Name all hosts in the address of the database, or promote it.",
        )  # fmt: skip
    names = facts["settings"]["synchronous_standby_names"]["value"]
    if names and not facts["synchronous"]:
        yield Problem(
            "synchronous-standby",
            f"synchronous_standby_names is {names!r} and no such standby is connected: no commit returns.",
            "Bring the standby back, or empty synchronous_standby_names and reload the server.",
        )


def _connections(facts: Facts) -> Iterator[Problem]:
    slots = facts["slots"]
    left, wanted = slots["most"] - slots["taken"], CONNECTIONS + OF_THE_SITE
    if left < wanted:
        yield Problem(
            "connections",
            f"Of {slots['most']} connections ({slots['what']}) {slots['taken']} are taken: {max(left, 0)} are left. A "
            f"runwire that starts takes {CONNECTIONS}, and the site {OF_THE_SITE}.",
            "Raise that limit and restart the server, or end sessions that nobody needs.",
        )


def _vacuum(facts: Facts) -> Iterator[Problem]:
    for name in ("autovacuum", "track_counts"):
        if facts["settings"][name]["value"] != "on":
            yield Problem(
                "autovacuum", f"{name} is off: tables of the broker grow, and deliveries become slower by the hour.",
                f"Set {name} = on and reload the server.",
            )  # fmt: skip
    for name in facts["not_vacuumed"]:
        yield Problem(
            "autovacuum", f"The table {name} is left out by autovacuum.",
            f"ALTER TABLE {name} RESET (autovacuum_enabled);",
        )  # fmt: skip


def _tables(facts: Facts) -> Iterator[Problem]:
    for table in facts["tables"]:
        name = table["name"]
        if table["unclean"]:
            yield Problem(
                "dead-rows", f"The table {name} has {table['dead']:,} dead rows beside {table['live']:,} live ones.",
                f"VACUUM {name}; if they stay, something holds back the horizon.", name,
            )  # fmt: skip
        else:
            yield Problem(
                "bloat", f"The table {name} has {table['bytes'] / GIB:,.1f} GiB, of which its rows need about "
                f"{table['needed'] / GIB:,.1f}.", f"VACUUM (FULL, ANALYZE) {name}, which locks it meanwhile.", name,
            )  # fmt: skip


def _wal(facts: Facts) -> Iterator[Problem]:
    for slot in facts["retained"]:
        state = "active" if slot["active"] else "inactive"
        yield Problem(
            "slot", f"The {state} replication slot {slot['name']} keeps {slot['bytes'] / GIB:,.1f} GiB of WAL on the "
            "disk of the server.",
            "Bring its reader back, or drop it (pg_drop_replication_slot); max_slot_wal_keep_size bounds it.",
            slot["name"],
        )  # fmt: skip


def _clocks(facts: Facts) -> Iterator[Problem]:
    before, after = facts["asked"]
    difference = max(before - facts["now"], facts["now"] - after)
    if difference > CLOCKS:
        yield Problem(
            "clocks", f"The clocks of the database and of this machine differ by {math.ceil(difference):,} s.",
            "Have both follow a time server (NTP): delays, schedules and the times in logs are compared.",
        )  # fmt: skip


def _search_path(facts: Facts) -> Iterator[Problem]:
    schemas, path = facts["schemas"], facts["search_path"]
    if schemas and facts["schema"] is None:
        yield Problem(
            "search-path", f"The tables are in the schema {' and '.join(schemas)}, which search_path ({path}) lacks.",
            f"ALTER ROLE {facts['role']} SET search_path = {schemas[0]}; or give the database's OPTIONS "
            f"options=-c search_path={schemas[0]}.",
        )  # fmt: skip
    elif len(schemas) > 1:
        yield Problem(
            "search-path",
            f"The schemas {' and '.join(schemas)} of this database have the tables of a broker; sessions like this one "
            f"use {facts['schema']}. Brokers in one database hear each other's notifications.",
            "Give each broker a database of its own, and drop the schema that is not used.",
        )  # fmt: skip
    for name in facts["open_schemas"]:
        yield Problem(
            "open-schema", f"Every role may create tables and functions in the schema {name}, which search_path has: "
            "the broker could be made to run them.", f"REVOKE CREATE ON SCHEMA {name} FROM PUBLIC;",
        )  # fmt: skip


def _limits(facts: Facts) -> Iterator[Problem]:
    for name, (least, what) in LIMITS.items():
        setting = facts["settings"].get(name)  # of a later version
        if setting and 0 < int(setting["raw"]) < least * 1000:
            yield Problem(
                "timeout", f"Django's sessions have {name} = {setting['value']} (set by: {setting['source']}), which "
                f"ends {what}.", f"ALTER ROLE {facts['role']} SET {name} = 0;", name,
            )  # fmt: skip


def _pooler(facts: Facts) -> Iterator[Problem]:
    if facts["info"].backend_pid != facts["backend"]:
        yield Problem(
            "pooler", "A pooler, such as PgBouncer, is between this process and the server.",
            "It has to give each client a session of its own (pool_mode = session); better: connect to the server.",
            notice=True,
        )  # fmt: skip


def _tls(facts: Facts) -> Iterator[Problem]:
    info = facts["info"]
    if is_here(info.host):
        return
    if not facts["encrypted"]:
        yield Problem(
            "database-tls", f"The connection to the database on {info.host} is not encrypted: messages and the digests "
            "of keys can be read on the way.", "Add sslmode=verify-full and sslrootcert to the database's parameters.",
        )  # fmt: skip
    elif (mode := info.get_parameters().get("sslmode", "prefer")) not in ("verify-ca", "verify-full"):
        yield Problem(
            "database-tls", f"The connection to the database is encrypted, and not checked: sslmode is {mode}.",
            "Set sslmode=verify-full and sslrootcert.",
        )  # fmt: skip


def _version(facts: Facts) -> Iterator[Problem]:
    version = facts["info"].server_version // 10000
    if version > NEWEST_SERVER:
        yield Problem(
            "newer-server", f"The server is PostgreSQL {version}; {NEWEST_SERVER} is the newest one that is tested.",
            "See whether there is a newer Fivewire.", notice=True,
        )  # fmt: skip


def _sight(facts: Facts) -> Iterator[Problem]:
    if not facts["sees_others"]:
        yield Problem(
            "sight", f"The role {facts['role']} does not see what sessions of other roles do: one that holds back "
            "vacuum, or a standby, may be missing here.", f"GRANT pg_monitor TO {facts['role']};", notice=True,
        )  # fmt: skip


def _of_schema(using: str) -> Iterator[Problem]:
    """What the tables of the broker say."""
    yield from (problem for problem in StateReader().read(using).problems if problem.kind in OF_THE_PAGE)
    yield from _keys(using)
    for model in (PeriodicJob, EtlSchedule):
        for zone in model.objects.using(using).filter(enabled=True).values_list("timezone", flat=True).distinct():
            if problem := timezone_problem(zone):
                yield Problem(
                    "time-zone", f"Schedules ({model._meta.verbose_name_plural}) do not run here: {problem}",
                    "Install the zones (tzdata), or correct the schedule.", zone,
                )  # fmt: skip


def _keys(using: str) -> Iterator[Problem]:
    for key in ApiKey.objects.using(using).filter(revoked_at=None):
        rights = [name for name in ("publish", "consume", "manage") if "*" in getattr(key, name)]
        if rights:
            yield Problem(
                "api-key", f"Whoever has the API key {key.name!r} may {' and '.join(rights)} everything.",
                f"Grant it what its program uses: apikey grant {key.name} --publish 'orders*'.", key.pk,
            )  # fmt: skip
