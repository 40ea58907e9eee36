"""The columns of the output, and what they mean. `_schema.json` in the output says the same to other programs.

A column may be added in a later version, never renamed or given another type; older files then lack it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from queues.etl.job.ledger import VERSION

#: A column's name, type and meaning.
Column = tuple[str, str, str]

MESSAGES: Sequence[Column] = (
    ("id", "bigint", "The message's first id, by which it is known everywhere; no two rows have the same."),
    ("queue_name", "string", "The queue's name, exactly; null when the queue was deleted before it was known."),
    ("queue_id", "int", "The queue's number: another queue of the same name has another."),
    ("outcome", "string", "How it was finished: acknowledged, expired, purged, dropped or removed."),
    ("attempts", "int", "Deliveries that ended without success."),
    ("producer", "string", "The name of the API key that published it; null: none, or it is gone."),
    ("consumer", "string", "The name of the API key that acknowledged it."),
    ("producer_id", "bigint", "The number of the API key that published it."),
    ("consumer_id", "bigint", "The number of the API key that acknowledged it."),
    ("published_at", "timestamp", "When it was stored."),
    ("delivered_at", "timestamp", "The last delivery; null when there was none, or it is unknown."),
    ("finished_at", "timestamp", "When it was finished; dt is the day of this in UTC."),
    ("due_at", "timestamp", "When it, or its last attempt, was to be delivered; null: at once."),
    ("size", "int", "Bytes of its payload."),
    ("key", "string", "Its public key, if it had one."),
    ("headers", "string", "Its headers as JSON; null unless the queue keeps everything."),
    ("content", "string", "The content type of the payload; null: bytes."),
    ("job", "boolean", "Whether a worker did it as a job."),
    ("body", "binary", "The payload, with --bodies raw, if the queue keeps it."),
    ("body_json", "string", "The payload as JSON, with --bodies json; null when it is no JSON or MessagePack."),
    ("result", "binary", "What the worker answered, as MessagePack, with --bodies raw."),
    ("result_json", "string", "What the worker answered, as JSON, with --bodies json."),
)  # fmt: skip
AUDIT: Sequence[Column] = (
    ("chain_name", "string", "The chain's name, exactly."),
    ("seq", "bigint", "0, 1, 2 and so on, in each chain."),
    ("at", "timestamp", "When it was appended; dt is the day of this in UTC."),
    ("event", "string", "What happened."),
    ("id", "string", "To what; FIRST-LAST in the chain of a queue: to each of these messages."),
    ("sender", "string", "By whom."),
    ("recipient", "string", "For whom."),
    ("hash", "string", "The row's BLAKE3 hash, hexadecimal."),
)
LIVE: Sequence[Column] = (
    ("id", "bigint", "The message's first id."),
    ("queue_name", "string", "The name of the queue in which it is."),
    ("queue_id", "int", "The queue's number."),
    ("state", "string", "ready, leased, delayed or dead."),
    ("attempts", "int", "Deliveries that ended without success."),
    ("producer", "string", "The name of the API key that published it."),
    ("published_at", "timestamp", "When it was stored."),
    ("due_at", "timestamp", "When a delayed message becomes ready."),
    ("dead_at", "timestamp", "When it became a dead letter."),
    ("dead_queue", "string", "The queue in which it became a dead letter."),
    ("dead_reason", "string", "Why its last delivery failed."),
    ("size", "int", "Bytes of its payload."),
    ("key", "string", "Its public key."),
    ("seen_at", "timestamp", "When it was looked at; each row at its own time."),
)  # fmt: skip

PARTITIONS = {
    "messages": {"dt": "the day of finished_at in UTC", "queue": "the queue's name, percent-encoded"},
    "audit": {"dt": "the day of at in UTC", "chain": "the chain's name, percent-encoded"},
    "live": {},
}


def ddl(columns: Sequence[Column]) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind, _ in columns)


def description(body_schema: str) -> str:
    """The text of `_schema.json`."""
    tables = {
        table: {
            "partitions": PARTITIONS[table],
            "columns": [{"name": name, "type": kind, "meaning": text} for name, kind, text in columns],
        }
        for table, columns in (("messages", MESSAGES), ("audit", AUDIT), ("live", LIVE))
    }
    if body_schema:
        data = {"name": "data", "type": body_schema, "meaning": "Fields of the payload, as --body-schema names them."}
        tables["messages"]["columns"] = [*tables["messages"]["columns"], data]
    return json.dumps({"version": VERSION, "tables": tables}, indent=1) + "\n"
