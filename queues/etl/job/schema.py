"""The columns of the output, and what they mean. `_schema.json` in the output says the same to other programs.

A column may be added in a later version, never renamed or given another type; older files then lack it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from queues.etl.job.ledger import VERSION

#: A column's name, type and meaning.
Column = tuple[str, DataType, str]

MESSAGES: Sequence[Column] = (
    ("id", LongType(), "The message's first id, by which it is known everywhere; no two rows have the same."),
    ("queue_name", StringType(), "The queue's name, exactly; null when the queue was deleted before it was known."),
    ("queue_id", IntegerType(), "The queue's number: another queue of the same name has another."),
    ("outcome", StringType(), "How it was finished: acknowledged, expired, purged, dropped or removed."),
    ("attempts", IntegerType(), "Deliveries that ended without success."),
    ("producer", StringType(), "The name of the API key that published it; null: none, or it is gone."),
    ("consumer", StringType(), "The name of the API key that acknowledged it."),
    ("producer_id", LongType(), "The number of the API key that published it."),
    ("consumer_id", LongType(), "The number of the API key that acknowledged it."),
    ("published_at", TimestampType(), "When it was stored."),
    ("delivered_at", TimestampType(), "The last delivery; null when there was none, or it is unknown."),
    ("finished_at", TimestampType(), "When it was finished; dt is the day of this in UTC."),
    ("due_at", TimestampType(), "When it, or its last attempt, was to be delivered; null: at once."),
    ("size", IntegerType(), "Bytes of its payload."),
    ("key", StringType(), "Its public key, if it had one."),
    ("headers", StringType(), "Its headers as JSON; null unless the queue keeps everything."),
    ("content", StringType(), "The content type of the payload; null: bytes."),
    ("job", BooleanType(), "Whether a worker did it as a job."),
    ("body", BinaryType(), "The payload, with --bodies raw, if the queue keeps it."),
    ("body_json", StringType(), "The payload as JSON, with --bodies json; null when it is no JSON or MessagePack."),
    ("result", BinaryType(), "What the worker answered, as MessagePack, with --bodies raw."),
    ("result_json", StringType(), "What the worker answered, as JSON, with --bodies json."),
)  # fmt: skip
AUDIT: Sequence[Column] = (
    ("chain_name", StringType(), "The chain's name, exactly."),
    ("seq", LongType(), "0, 1, 2 and so on, in each chain."),
    ("at", TimestampType(), "When it was appended; dt is the day of this in UTC."),
    ("event", StringType(), "What happened."),
    ("id", StringType(), "To what; FIRST-LAST in the chain of a queue: to each of these messages."),
    ("sender", StringType(), "By whom."),
    ("recipient", StringType(), "For whom."),
    ("hash", StringType(), "The row's BLAKE3 hash, hexadecimal."),
)
LIVE: Sequence[Column] = (
    ("id", LongType(), "The message's first id."),
    ("queue_name", StringType(), "The name of the queue in which it is."),
    ("queue_id", IntegerType(), "The queue's number."),
    ("state", StringType(), "ready, leased, delayed or dead."),
    ("attempts", IntegerType(), "Deliveries that ended without success."),
    ("producer", StringType(), "The name of the API key that published it."),
    ("published_at", TimestampType(), "When it was stored."),
    ("due_at", TimestampType(), "When a delayed message becomes ready."),
    ("dead_at", TimestampType(), "When it became a dead letter."),
    ("dead_queue", StringType(), "The queue in which it became a dead letter."),
    ("dead_reason", StringType(), "Why its last delivery failed."),
    ("size", IntegerType(), "Bytes of its payload."),
    ("key", StringType(), "Its public key."),
    ("seen_at", TimestampType(), "When it was looked at; each row at its own time."),
)  # fmt: skip

PARTITIONS = {
    "messages": {"dt": "the day of finished_at in UTC", "queue": "the queue's name, percent-encoded"},
    "audit": {"dt": "the day of at in UTC", "chain": "the chain's name, percent-encoded"},
    "live": {},
}


def struct(columns: Sequence[Column]) -> StructType:
    """The columns as Spark has them."""
    return StructType([StructField(name, kind) for name, kind, _ in columns])


def description(body_schema: str) -> str:
    """The text of `_schema.json`."""
    tables = {
        table: {
            "partitions": PARTITIONS[table],
            "columns": [{"name": name, "type": kind.simpleString(), "meaning": text} for name, kind, text in columns],
        }
        for table, columns in (("messages", MESSAGES), ("audit", AUDIT), ("live", LIVE))
    }
    if body_schema:
        data = {"name": "data", "type": body_schema, "meaning": "Fields of the payload, as --body-schema names them."}
        tables["messages"]["columns"] = [*tables["messages"]["columns"], data]
    return json.dumps({"version": VERSION, "tables": tables}, indent=1) + "\n"
