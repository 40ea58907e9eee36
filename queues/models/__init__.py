"""Everything the broker keeps in PostgreSQL.

SQL writes the hot tables (`Message`, `ArchivedMessage`, `QueueTally`, `AuditRow`); the ORM only reads them.
"""

from queues.models.archive import ArchivedMessage, Outcome
from queues.models.audit import (
    AnchorKind,
    AuditAnchor,
    AuditChain,
    AuditHead,
    AuditJournalEntry,
    AuditRow,
    AuditVerification,
)
from queues.models.bulk import BulkAction, BulkOperation, BulkState
from queues.models.connection import Connection, ConnectionTotal
from queues.models.credential import ApiKey, ApiKeyUse
from queues.models.etl import EtlRun, EtlState, EtlWitness, Rollup
from queues.models.etl_schedule import EtlBodies, EtlSchedule
from queues.models.exchange import ExchangeType, KombuBinding, TemporaryQueue
from queues.models.joblog import JobLogLine
from queues.models.mailbox import Mailbox, SeenLetter
from queues.models.message import Content, Message, State
from queues.models.node import Consumer, DeadNode, Interest, Node
from queues.models.periodic import PeriodicJob
from queues.models.queue import Overflow, Queue, QueueCount, QueueKind, QueueTally, Retention
from queues.models.sample import QueueSample, SampleMark
from queues.models.taskrun import TaskRun, TaskStatus
from queues.models.topology import (
    DeadLetterCount,
    DeadLetterTally,
    Route,
    RouteCount,
    RouteTally,
    Subscription,
    Topology,
)
from queues.models.worker import Worker
