"""The operators' pages: Django's admin, without counting a large table anywhere."""

from queues.admin.archive import ArchivedMessageAdmin
from queues.admin.audit import AuditChainAdmin
from queues.admin.audit_rows import AuditRowAdmin
from queues.admin.bulk import BulkOperationAdmin
from queues.admin.connection import ConnectionAdmin
from queues.admin.credential import ApiKeyAdmin
from queues.admin.etl import EtlRunAdmin
from queues.admin.etl_schedule import EtlScheduleAdmin
from queues.admin.history import QueueSampleAdmin
from queues.admin.mailbox import MailboxAdmin
from queues.admin.message import MessageAdmin
from queues.admin.node import NodeAdmin
from queues.admin.periodic import PeriodicJobAdmin
from queues.admin.queue import QueueAdmin
from queues.admin.rollup import RollupAdmin
from queues.admin.topology import RouteAdmin, SubscriptionAdmin
from queues.admin.worker import WorkerAdmin
