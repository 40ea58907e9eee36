"""Everything the broker keeps in PostgreSQL.

The engine's SQL writes the hot tables (`Message`, `ArchivedMessage`, `QueueTally`); the ORM only reads them.
"""

from queues.models.archive import ArchivedMessage, Outcome
from queues.models.credential import ApiKey
from queues.models.joblog import JobLogLine
from queues.models.message import Content, Message, State
from queues.models.node import Interest, Node
from queues.models.periodic import PeriodicJob
from queues.models.queue import Overflow, Queue, QueueCount, QueueKind, QueueTally, Retention
from queues.models.topology import Route, Subscription, Topology
from queues.models.worker import Worker

__all__ = [
    "ApiKey",
    "ArchivedMessage",
    "Content",
    "Interest",
    "JobLogLine",
    "Message",
    "Node",
    "Outcome",
    "Overflow",
    "PeriodicJob",
    "Queue",
    "QueueCount",
    "QueueKind",
    "QueueTally",
    "Retention",
    "Route",
    "State",
    "Subscription",
    "Topology",
    "Worker",
]
