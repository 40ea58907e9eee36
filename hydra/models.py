"""Hydra in PostgreSQL: the nodes' promises, their status, and records of lines.

`hydra.storage` writes all of it with its own SQL; the ORM reads, and deletes nodes.
"""

from __future__ import annotations

from typing import Final

from django.db import connections, models
from django.db.models import Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from hydra.locks import LOCK_CLASS
from queues.models.moment import MomentField
from queues.models.postgres import ArrayField

_HELD: Final = """
    coalesce("hydra_node"."id" in (
        select objid::bigint from pg_locks
        where locktype = 'advisory' and granted and objsubid = 2 and classid = %s::bigint::oid
            and database = (select oid from pg_database where datname = current_database())), false)
"""


class NodeRole(models.TextChoices):
    """`hydra.protocol.roles.Role` by its lower-case names."""

    OUTSIDE = "outside", "outside"
    WAITING = "waiting", "waiting"
    FOLLOWING = "following", "following"
    NOMINEE = "nominee", "nominee"
    CALLING = "calling", "calling"
    LEADING = "leading", "leading"


class IrcState(models.TextChoices):
    """`hydra.protocol.irclease.State` by its lower-case names."""

    OFF = "off", "off"
    CONNECTING = "connecting", "connecting"
    ON = "on", "on"


class NodeQuerySet(models.QuerySet["Node"]):
    """Nodes, and whether they run."""

    def with_running(self) -> NodeQuerySet:
        """Add `running`: whether a process holds the node's lock."""
        held = RawSQL(_HELD, (LOCK_CLASS,), output_field=models.BooleanField())
        return self.annotate(**{"running": held})

    def try_lock(self, node: int) -> bool:
        """Keep all processes from running a node until the transaction ends; False if one runs it."""
        with connections[self.db].cursor() as cursor:
            cursor.execute("select pg_try_advisory_xact_lock(%s, %s)", [LOCK_CLASS, node])
            return bool(cursor.fetchone()[0])


class Node(models.Model):
    """A Hydra node by its stable name. It runs while a process holds the advisory lock of its id.

    `voter`, `term`, `pledge` and `electorate` are its promises: a trigger refuses a lower term, and a second pledge of
    a term. The fields from `role` on are its status, or its last one.
    """

    id = models.AutoField(primary_key=True)
    name = models.CharField(max_length=255, unique=True, help_text="Its stable name: the key of its promises.")
    voter = models.CharField(max_length=16, unique=True, help_text="Its lasting key: the identity of its votes.")
    term = models.BigIntegerField(default=0, db_default=0, help_text="The latest term that it knows of.")
    pledge = models.BigIntegerField(null=True, help_text="The nominee of its pledge in this term.")
    electorate = models.TextField(
        blank=True, default="", db_default="", help_text="The voters: TERM.VERSION:KEY,KEY. Empty: unknown."
    )
    run = models.UUIDField(null=True, help_text="The process that runs it, or ran it last.")
    host = models.CharField(max_length=255, default="", db_default="")
    pid = models.IntegerField(null=True)
    started_at = MomentField(null=True)
    seen_at = MomentField(null=True, verbose_name="last seen")
    listen = ArrayField(models.TextField(), default=list, db_default=models.Value("{}"), verbose_name="listens on")
    role = models.CharField(max_length=9, choices=NodeRole, default=NodeRole.OUTSIDE, db_default=NodeRole.OUTSIDE)
    current_id = models.BigIntegerField(null=True, verbose_name="id", help_text="Drawn anew whenever it joins anew.")
    leader = models.BigIntegerField(null=True, help_text="The id of the leader that it follows or is.")
    leader_name = models.TextField(blank=True, default="", db_default="")
    lease_until = MomentField(null=True, verbose_name="lease", help_text="Its lead ends then, unless renewed.")
    irc = models.CharField(
        max_length=10, choices=IrcState, default=IrcState.OFF, db_default=IrcState.OFF, verbose_name="IRC"
    )
    position_term = models.BigIntegerField(null=True)
    position_idx = models.BigIntegerField(null=True, help_text="The last line from IRC that it has delivered.")

    faults = models.BigIntegerField(
        default=0, db_default=0, help_text="Units of work given up by its process for unforeseen reasons."
    )
    lines_refused = models.BigIntegerField(
        default=0, db_default=0, help_text="Lines of its process that IRC refused."
    )
    lines_lost = models.BigIntegerField(
        default=0, db_default=0, help_text="Lines that were said or not, nobody knows, or not stored; a gap is one."
    )

    objects = NodeQuerySet.as_manager()

    running: bool
    """Whether a process runs it now; `with_running` sets it."""

    class Meta:
        verbose_name = "Hydra node"
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(condition=~Q(name=""), name="hydra_node_name_not_empty"),
            models.CheckConstraint(condition=Q(voter__regex=r"^[0-9a-f]{16}$"), name="hydra_node_voter"),
            models.CheckConstraint(condition=Q(term__gte=0), name="hydra_node_term"),
            models.CheckConstraint(condition=Q(role__in=NodeRole.values), name="hydra_node_role"),
            models.CheckConstraint(condition=Q(irc__in=IrcState.values), name="hydra_node_irc"),
            models.CheckConstraint(
                condition=Q(position_term__isnull=True, position_idx__isnull=True)
                | Q(position_term__isnull=False, position_idx__isnull=False),
                name="hydra_node_position",
            ),
        )

    def __str__(self) -> str:
        return self.name


class Link(models.Model):
    """A link of a node, or of its last process."""

    id = models.BigAutoField(primary_key=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="links", db_index=False)
    number = models.BigIntegerField(help_text="Counted from 1 in each process of the node.")
    target = models.TextField(blank=True, help_text="The dialled address; empty: accepted.")
    origin = models.TextField(blank=True, help_text="The remote address; empty: dialled.")
    peer = models.BigIntegerField(null=True, help_text="The neighbour's id, once it is known.")
    peer_tag = models.TextField(blank=True, help_text="The neighbour's friendly name, if known.")
    state = models.CharField(max_length=8, help_text="The state of its handshake: joined, or earlier.")
    extended = models.BooleanField(help_text="Whether the neighbour knows attributes.")
    opened_at = MomentField()

    class Meta:
        ordering = ("number",)
        constraints = (models.UniqueConstraint(fields=("node", "number"), name="hydra_link_number"),)

    def __str__(self) -> str:
        return f"link {self.number}"


class Member(models.Model):
    """A node's record of another node."""

    id = models.BigAutoField(primary_key=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="members", db_index=False)
    member = models.BigIntegerField(help_text="Its id.")
    voter = models.CharField(max_length=16, blank=True, help_text="Its lasting key; empty: it knows no attributes.")
    tag = models.TextField(blank=True, help_text="Its friendly name, if known.")
    hops = models.IntegerField(help_text="Its distance in links; 0: unknown.")
    via = models.BigIntegerField(null=True, help_text="The first link of the way to it.")
    answered_at = MomentField(null=True, help_text="Its last answer, if this node leads.")
    voting = models.BooleanField(help_text="Whether it has a vote.")

    class Meta:
        ordering = ("hops", "tag", "member")
        constraints = (models.UniqueConstraint(fields=("node", "member"), name="hydra_member_once"),)

    def __str__(self) -> str:
        return f"{self.tag or 'node'} ({self.member})"


class Vote(models.Model):
    """The pledge of a lasting key in a term. Rows outlive the node's."""

    id = models.BigAutoField(primary_key=True)
    voter = models.CharField(max_length=16)
    term = models.BigIntegerField()
    pledge = models.BigIntegerField(help_text="The id of the nominee.")
    name = models.CharField(max_length=255, help_text="The node's stable name.")
    at = MomentField(db_default=Now())

    class Meta:
        ordering = ("voter", "-term")
        constraints = (models.UniqueConstraint(fields=("voter", "term"), name="hydra_vote_once"),)

    def __str__(self) -> str:
        return f"{self.voter} pledged to {self.pledge} in term {self.term}"


class Tenure(models.Model):
    """A time for which a node led a term, or held IRC. Rows outlive the node's; old ones are removed."""

    class Kind(models.TextChoices):
        LEAD = "lead", "led"
        IRC = "irc", "held IRC"

    id = models.BigAutoField(primary_key=True)
    voter = models.CharField(max_length=16, help_text="The node's lasting key.")
    name = models.CharField(max_length=255, help_text="The node's stable name.")
    kind = models.CharField(max_length=4, choices=Kind)
    term = models.BigIntegerField()
    began_at = MomentField()
    until = MomentField(help_text="It is known to have lasted until then.")

    class Meta:
        ordering = ("-began_at",)
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(fields=("voter", "kind", "began_at"), name="hydra_tenure_once"),
            models.CheckConstraint(condition=Q(kind__in=("lead", "irc")), name="hydra_tenure_kind"),
        )
        indexes = (models.Index(fields=("until",), name="hydra_tenure_until"),)

    def __str__(self) -> str:
        return f"{self.name} {self.get_kind_display()} in term {self.term}"


class Event(models.Model):
    """An event of a node, for operators. The oldest are removed, by age and by number."""

    id = models.BigAutoField(primary_key=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="events", db_index=False)
    at = MomentField()
    kind = models.CharField(max_length=32)
    term = models.BigIntegerField()
    text = models.TextField()

    class Meta:
        ordering = ("-id",)
        indexes = (models.Index(fields=("node", "id"), name="hydra_event_node"),)

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class RecordedLine(models.Model):
    """A line from IRC that was published: nodes that share a database publish it once. Kept for a day."""

    pk = models.CompositePrimaryKey("queue", "term", "idx")
    queue = models.TextField()
    term = models.BigIntegerField()
    idx = models.BigIntegerField()
    recorded_at = MomentField(db_default=Now())

    class Meta:
        indexes = (models.Index(fields=("recorded_at",), name="hydra_recordedline_at"),)

    def __str__(self) -> str:
        return f"{self.queue}: {self.term}.{self.idx}"


class SentLine(models.Model):
    """A message that was sent to IRC, or to a leader elsewhere: it is never sent again."""

    message = models.BigIntegerField(primary_key=True, help_text="The first id of the message.")
    sent_at = MomentField(db_default=Now())

    class Meta:
        indexes = (models.Index(fields=("sent_at",), name="hydra_sentline_at"),)

    def __str__(self) -> str:
        return f"message {self.message}"
