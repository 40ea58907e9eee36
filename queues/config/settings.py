"""The settings of the app `queues`: each is declared once, with its default, bounds and meaning.

In a project of its own `queues` takes a setting from Django's settings, by the same name, or else its default::

    from queues.config.settings import settings

    settings.BROKER_PREFETCH

A text is parsed as the value of an environment variable would be. ``brokersite.environment`` includes these classes and
reads them from the environment; ``docs/settings.md`` lists them. The module can be imported without settings.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings as django_settings

from queues.config.options import (
    InvalidEnvironment,
    Options,
    choice,
    directory,
    file,
    flag,
    integer,
    mode,
    seconds,
    size,
    text,
    words,
)
from queues.database.parameters import connection_parameters

MIB = 1024 * 1024

#: A number of days, up to a century.
days = partial(integer, maximum=36_500)


class FileSettings(Options):
    """Files"""

    DATA_DIR = directory(
        lambda earlier: Path.cwd() / ".data",
        "Where the embedded PostgreSQL, generated passwords and keys, copies of audit anchors and ETL logs are kept.",
        default_text="`.data` in the working directory",
    )


class KeySettings(Options):
    """API keys"""

    BROKER_KEY_PEPPERS = words(
        lambda earlier: (earlier["SECRET_KEY"],),
        "Secrets without which the digests of API keys say nothing. New keys are digested with the first; keys that "
        "were digested with any of them are accepted. All hosts on one database need the same.",
        default_text="`SECRET_KEY`",
        shortest=16,
        secret=True,
    )


class EngineSettings(Options):
    """The engine"""

    BROKER_MAX_FRAME = size(
        16 * MIB,
        "The largest BlipMQ frame and SSPQ payload a client may send; a larger one closes its connection. BlipMQ "
        "itself has no larger frames.",
        minimum=1024,
        maximum=16 * MIB,
    )
    BROKER_PREFETCH = integer(
        10_000, "Messages a process holds in memory for each queue.", minimum=1, maximum=10_000_000
    )
    BROKER_SEGMENT_MESSAGES = integer(
        32,
        "Plain messages of a queue from which on those that are published together are stored as one row, a segment; 0"
        " means never.",
        maximum=4096,
    )
    BROKER_ROTATION_SECONDS = seconds(
        10.0,
        "Time for which one of the three tables of messages that are delivered at once is written to. Then the next has"
        " its turn, and the one before is emptied: messages that are still with consumers get rows in another table.",
        minimum=0.1,
        maximum=600.0,
    )
    BROKER_PREFETCH_BYTES = size(
        16 * MIB, "Bytes of messages, with headers and all, a process holds in memory for each queue.",
        minimum=64 * 1024,
    )  # fmt: skip
    BROKER_PREFETCH_TOTAL_BYTES = size(
        128 * MIB, "Bytes of messages a process holds in memory for all queues; each may have as much as is left.",
        minimum=64 * 1024,
    )  # fmt: skip
    BROKER_PENDING_BYTES = size(
        32 * MIB, "Payload bytes waiting for their commit at which sockets are no longer read.", minimum=64 * 1024
    )
    BROKER_PUBLISH_TIMEOUT = seconds(
        60.0,
        "Time the database may be away, or take for a commit, before publishes that wait for it are refused, where the "
        "protocol can say so.",
        minimum=0.1,
    )
    BROKER_STALL_TIMEOUT = seconds(
        5.0,
        "Time a commit may take before `/readyz` says that publishes are not stored, and a command or the admin that a "
        "change waits for a standby.",
        minimum=0.1,
    )
    BROKER_DATABASE_TIMEOUT = seconds(
        15.0,
        "Time the database may be silent before the engine leaves it and connects anew, and a host of the engine "
        "before the database lets go of what it has locked.",
        minimum=1, maximum=3600,
    )  # fmt: skip


class QueueSettings(Options):
    """Defaults of queues"""

    BROKER_DEFAULT_MAX_ATTEMPTS = integer(
        5, "Deliveries of a message before it becomes a dead letter.", minimum=1, maximum=10_000
    )
    BROKER_DEFAULT_RETRY_BACKOFF = seconds(1.0, "Wait before the first redelivery; it doubles with each further one.")
    BROKER_DEFAULT_ACK_TIMEOUT = seconds(
        60.0, "Time a consumer has to acknowledge a delivery.", minimum=0.1, maximum=30 * 86_400
    )


class SubscriptionSettings(Options):
    """Subscriptions of BlipMQ"""

    BROKER_BLIPMQ_MAX_SUBSCRIPTIONS_PER_KEY = integer(
        100_000, "Subscriptions that an API key may make, over all nodes; several nodes may exceed it by a few.",
        minimum=1, maximum=100_000_000,
    )  # fmt: skip
    BROKER_BLIPMQ_QOS0_MESSAGES = integer(
        1024, "QoS 0 messages a process holds for a subscription until they are polled; the oldest are dropped.",
        minimum=1, maximum=10_000_000,
    )  # fmt: skip
    BROKER_BLIPMQ_QOS0_BYTES = size(
        4 * MIB, "Bytes of QoS 0 messages a process holds for a subscription; the oldest are dropped.",
        minimum=1024, maximum=1024 * MIB,
    )  # fmt: skip
    BROKER_BLIPMQ_QOS0_FORWARD_BYTES = size(
        5600, "The largest QoS 0 message that goes to a subscriber on another node; larger ones are dropped. A "
        "notification of PostgreSQL takes no more than the default.",
        minimum=0, maximum=5600,
    )  # fmt: skip
    BROKER_BLIPMQ_MAX_ATTEMPTS = integer(
        8, "Deliveries of a message, for the queues of BlipMQ subscriptions.", minimum=1, maximum=10_000
    )
    BROKER_BLIPMQ_RETRY_BACKOFF = seconds(
        0.1, "Wait before the first redelivery, for the queues of BlipMQ subscriptions."
    )


class MailboxSettings(Options):
    """Mailboxes of peerbus"""

    BROKER_PEERBUS_WINDOW = integer(
        10_000, "Letters delivered to a peer and not acknowledged, at most.", minimum=1, maximum=1_000_000
    )
    BROKER_PEERBUS_NAMES_PER_KEY = integer(
        10_000, "Names of peers that one API key may take, connected or not; 0: any number.", maximum=100_000_000
    )
    BROKER_PEERBUS_PENDING_BYTES_PER_KEY = size(
        16 * MIB, "Bytes that the peers of one API key have sent and that are not committed yet, at most: beyond it "
        "these connections alone are not read from.", minimum=64 * 1024, maximum=1024 * MIB,
    )  # fmt: skip
    BROKER_PEERBUS_DEDUPE_DAYS = days(30, "Days in which the id of a letter counts as sent before.", minimum=1)
    BROKER_PEERBUS_RELAXED = flag(
        False, "As the reference server: any API key may take a name that is not connected, and acknowledge any letter."
    )
    BROKER_PEERBUS_AUDIT = flag(
        True, "Record every letter sent, delivered and acknowledged in the audit chain `peerbus`."
    )


class RetentionSettings(Options):
    """Retention"""

    BROKER_ARCHIVE_DAYS = days(30, "Days that finished messages stay in the archive.", minimum=1)
    BROKER_IDLE_SUBSCRIPTION_DAYS = days(
        30, "Days without a poll after which a BlipMQ subscription ends with its messages; 0 means never."
    )
    BROKER_IDLE_SUBSCRIPTION_NOTICE_DAYS = days(
        7, "Days for which the log and the admin tell that before, of `BROKER_IDLE_SUBSCRIPTION_DAYS` half at most. A "
        "poll within them keeps the subscription."
    )  # fmt: skip
    BROKER_ETL_RUN_DAYS = days(90, "Days that ETL runs which have ended stay in the admin, with their logs.", minimum=1)
    BROKER_BULK_OPERATION_DAYS = days(
        30, "Days that bulk operations which have ended stay in the admin; of more than 10,000 the newest do.",
        minimum=1,
    )  # fmt: skip
    BROKER_HISTORY_DAYS = integer(
        31, "Days that the history of queues stays, their rates and depths: by the minute, after a day by the hour; "
        "0: none is kept.", maximum=3660,
    )  # fmt: skip
    BROKER_ROLLUP_DAYS = days(
        400, "Days that the hourly figures of queues stay, from which charts are drawn.", minimum=8
    )


class AuditSettings(Options):
    """The audit chains"""

    BROKER_AUDIT_KEY = file(
        "The Ed25519 private key (PEM, not encrypted) that signs the audit chains' anchors. Unset, one is generated "
        "once and kept in `DATA_DIR/audit_key`."
    )
    BROKER_AUDIT_TRUSTED_KEYS = words(
        (),
        "Further Ed25519 public keys whose anchors count, as `manage.py audit key` prints them: those of other hosts "
        "and earlier ones.",
    )
    BROKER_AUDIT_ANCHOR_INTERVAL = seconds(
        60.0, "Time between two signed anchors of an audit chain that has grown.", minimum=1
    )
    BROKER_AUDIT_DAYS = days(365, "Days that rows stay in the audit chains; 0 means for ever.")


class EtlSettings(Options):
    """ETL"""

    SPARK_MASTER = text("local[*]", "Where Spark runs: `local[N]`, `spark://HOST:PORT`, `yarn`, `k8s://…`.")
    ETL_OUTPUT = text(
        lambda earlier: str(earlier["DATA_DIR"] / "etl"),
        "Where Parquet is written: a directory, or whatever else Spark can write to, such as `s3a://bucket/path`.",
        maximum=4096,
        default_text="`DATA_DIR/etl`",
    )
    BROKER_ETL_BODIES = choice("none", "The form of exported payloads that the archive keeps.", "none", "raw", "json")
    BROKER_ETL_BODY_SCHEMA = text(
        "", "Fields of JSON payloads that become columns, such as `order_id BIGINT, total DOUBLE`.", maximum=10_000
    )
    BROKER_ETL_VERIFY = choice("all", "Which audit chains a run verifies.", "all", "none")
    BROKER_ETL_READERS = integer(4, "Connections to the database that a run reads with.", minimum=1, maximum=1000)
    BROKER_ETL_BUSY_PERCENT = integer(
        40,
        "Percent of the time that a run works while other processes use more than half of this machine's processors;"
        " 100: always.",
        minimum=5,
        maximum=100,
    )
    BROKER_ETL_TIMEOUT = seconds(6 * 3600.0, "Time after which a run is ended.", minimum=1, maximum=7 * 86_400)
    BROKER_ETL_DRIVER_MEMORY = size(1024 * MIB, "Memory of Spark's driver.", minimum=512 * MIB)
    BROKER_ETL_EXECUTOR_MEMORY = size(1024 * MIB, "Memory of each executor on a cluster.", minimum=512 * MIB)
    BROKER_ETL_COMPACT_FILES = integer(
        4, "Small files of a day that is over and a queue, at which they are merged.", minimum=2, maximum=100_000
    )
    BROKER_ETL_UMASK = mode(
        0o077, "Permissions that files and directories of a local `ETL_OUTPUT` do not get; `027` lets a group read."
    )
    BROKER_ETL_ENVIRONMENT = words(
        (), "Variables of the environment that Spark has, beside those of Spark, Hadoop, Java and their clouds."
    )
    BROKER_ETL_JDBC_JAR = file(
        "PostgreSQL's JDBC driver, a jar. Unset, one in a known place is taken, else Spark fetches it from Maven."
    )


def _audit_keys_are_keys(env: QueuesSettings) -> Iterator[str]:
    if not (env.BROKER_AUDIT_KEY or env.BROKER_AUDIT_TRUSTED_KEYS):
        return
    from queues.audit.errors import InvalidAuditKey
    from queues.audit.keys import parse_private_key, parse_public_key

    if env.BROKER_AUDIT_KEY is not None:
        try:
            parse_private_key(env.BROKER_AUDIT_KEY.read_bytes())
        except (OSError, InvalidAuditKey):
            yield f"BROKER_AUDIT_KEY={str(env.BROKER_AUDIT_KEY)!r}: it must be a readable Ed25519 private key in PEM."
    for key in env.BROKER_AUDIT_TRUSTED_KEYS:
        try:
            parse_public_key(key)
        except InvalidAuditKey:
            yield f"BROKER_AUDIT_TRUSTED_KEYS: {key!r} must be an Ed25519 public key: 32 bytes in base64."


def _a_schema_is_for_json(env: QueuesSettings) -> Iterator[str]:
    if env.BROKER_ETL_BODY_SCHEMA and env.BROKER_ETL_BODIES != "json":
        yield "BROKER_ETL_BODY_SCHEMA is set and BROKER_ETL_BODIES is not json: only JSON has fields."


class QueuesSettings(
    EtlSettings, AuditSettings, RetentionSettings, MailboxSettings, SubscriptionSettings, QueueSettings, EngineSettings,
    KeySettings, FileSettings,
):  # fmt: skip
    """Every setting of the app."""

    checks = (_audit_keys_are_keys, _a_schema_is_for_json)


class _DjangoValues(Mapping[str, Any]):
    """The values in Django's settings, with the declared defaults."""

    def __getitem__(self, name: str) -> Any:
        option = DECLARED.get(name)
        given = getattr(django_settings, name, None)
        if option is None or not (given is None or isinstance(given, str)):
            return given
        return option.value(given, self)

    def __iter__(self) -> Iterator[str]:
        return iter(DECLARED)

    def __len__(self) -> int:
        return len(DECLARED)


DECLARED = {option.name: option for option in QueuesSettings.options()}
#: The settings, for the modules of `queues`.
settings = QueuesSettings(_DjangoValues())


def problems() -> list[str]:
    """Sentences about invalid values in Django's settings."""
    given = {name: getattr(django_settings, name, None) for name in DECLARED}
    texts = {name: DECLARED[name].spell(value) for name, value in given.items() if value is not None}
    try:
        QueuesSettings.read(texts, {"SECRET_KEY": django_settings.SECRET_KEY})
    except InvalidEnvironment as error:
        return error.problems
    return []


def child_environment(using: str, *names: str) -> dict[str, str]:
    """The environment of a child process with the same modules and settings, on the database of an alias.

    The site's settings come from the environment: it has the database, DATA_DIR and the settings that are named.
    """
    values = {name: str(getattr(settings, name)) for name in ("DATA_DIR", *names)}
    address = f"postgresql:///?{urlencode(connection_parameters(using), quote_via=quote)}"
    return {**os.environ, **values, "DATABASE_URL": address, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
