"""The audit chains: events in an order and wording whose changes are detected."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from queues.models.moment import MomentField
from queues.models.unchecked import UncheckedForeignKey

#: Bytes of a BLAKE3 hash, a SHA-256 digest and an Ed25519 signature.
HASH_BYTES = 32
SIGNATURE_BYTES = 64


class AuditChain(models.Model):
    """One chain: `peerbus`, `operators`, or `queue:NAME` of an audited queue."""

    id = models.AutoField(primary_key=True)
    name = models.TextField(unique=True)
    created_at = MomentField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name",)
        constraints = (models.CheckConstraint(condition=~Q(name=""), name="auditchain_name_not_empty"),)

    def __str__(self) -> str:
        return self.name


class AuditHead(models.Model):
    """The end of a chain, where it goes on. An appender holds the lock of this row until the commit.

    Its only index is (chain, next_seq) and no key: the newest version is found at once, even while an old transaction
    keeps every earlier one alive.
    """

    chain = models.OneToOneField(
        AuditChain, primary_key=True, on_delete=models.DO_NOTHING, related_name="head", db_constraint=False
    )
    next_seq = models.BigIntegerField(help_text="The number of the next row, which is the count of rows so far.")
    hash = models.BinaryField(max_length=HASH_BYTES, help_text="The last row's hash; at first that of nothing.")
    last_at = MomentField(null=True, help_text="The last row's time.")

    class Meta:
        constraints = (models.CheckConstraint(condition=Q(next_seq__gte=0), name="audithead_next_seq"),)

    def __str__(self) -> str:
        return f"{self.chain}, {self.next_seq} rows"


class AuditRow(models.Model):
    """One event. The table is partitioned by the day of `at` (UTC) and written by SQL only.

    A row is known by chain and seq together (unique in each partition); seq alone is nominally the primary key because
    Django's admin wants a single one. `at` never falls as `seq` grows, so a dropped day is a prefix of every chain. In
    the chain of a queue a row may stand for several messages (`queues.audit.spans`): `queues.audit.listing.rows_of`
    finds those of one.
    """

    chain = UncheckedForeignKey(AuditChain, related_name="rows")
    seq = models.BigIntegerField(primary_key=True, help_text="0, 1, 2 and so on, in each chain.")
    at = MomentField(help_text="The time of the append; not part of the hash.")
    event = models.TextField(help_text="The kind of the event, such as send, deliver or ack.")
    record_id = models.TextField(verbose_name="id", help_text="The object: a message's key, a queue.")
    sender = models.TextField(verbose_name="from")
    recipient = models.TextField(verbose_name="to")
    hash = models.BinaryField(max_length=HASH_BYTES, help_text="BLAKE3 of the row before's hash and this event.")

    class Meta:
        db_table = "queues_audit"
        ordering = ("chain", "seq")

    def __str__(self) -> str:
        return f"{self.seq}: {self.event} {self.record_id}"


class AnchorKind(models.TextChoices):
    """The cause of an anchor."""

    INTERVAL = "interval", "periodic"
    RETENTION = "retention", "rows up to it were dropped"
    MANUAL = "manual", "by hand"


class AuditAnchor(models.Model):
    """A signed statement that a chain had this hash at this seq. A chain's anchors are a chain themselves."""

    id = models.BigAutoField(primary_key=True)
    chain = models.ForeignKey(AuditChain, on_delete=models.CASCADE, related_name="anchors", db_index=False)
    number = models.BigIntegerField(help_text="1, 2, 3 and so on, in each chain.")
    seq = models.BigIntegerField()
    hash = models.BinaryField(max_length=HASH_BYTES)
    at = MomentField()
    kind = models.CharField(max_length=9, choices=AnchorKind)
    previous = models.BinaryField(
        max_length=HASH_BYTES, help_text="SHA-256 of the signature before; of nothing for the first."
    )
    key = models.CharField(max_length=32, help_text="The fingerprint of the public key.")
    signature = models.BinaryField(max_length=SIGNATURE_BYTES, help_text="Ed25519.")

    class Meta:
        ordering = ("chain", "number")
        constraints = (
            models.UniqueConstraint(fields=("chain", "number"), name="auditanchor_number"),
            models.CheckConstraint(condition=Q(number__gte=1, seq__gte=0), name="auditanchor_numbers"),
            models.CheckConstraint(condition=Q(kind__in=AnchorKind.values), name="auditanchor_kind"),
        )
        indexes = (models.Index(fields=("chain", "seq"), name="auditanchor_seq"),)

    def __str__(self) -> str:
        return f"anchor {self.number} of {self.chain} at {self.seq}"


class AuditVerification(models.Model):
    """The outcome of reading a chain from its first row to its last."""

    id = models.BigAutoField(primary_key=True)
    chain = models.ForeignKey(AuditChain, on_delete=models.CASCADE, related_name="verifications", db_index=False)
    at = MomentField(db_default=Now())
    ok = models.BooleanField()
    rows = models.BigIntegerField(help_text="Rows verified.")
    broken_seq = models.BigIntegerField(null=True, help_text="The first broken row.")
    finding = models.TextField(blank=True, help_text="The fault of that row; empty: none.")
    seconds = models.FloatField()

    class Meta:
        ordering = ("-at", "-id")
        constraints = (
            models.CheckConstraint(
                condition=Q(ok=True, finding="", broken_seq__isnull=True) | (Q(ok=False) & ~Q(finding="")),
                name="auditverification_says_why",
            ),
        )
        indexes = (models.Index(fields=("chain", "-at"), name="auditverification_chain"),)

    def __str__(self) -> str:
        return f"{self.chain}: {'right' if self.ok else self.finding}"


class AuditJournalEntry(models.Model):
    """An event that waits to be moved into its chain: a long transaction must not hold a chain's lock."""

    id = models.BigAutoField(primary_key=True)
    chain = models.TextField(help_text="The chain's name; there may be no such chain yet.")
    event = models.TextField()
    record_id = models.TextField(verbose_name="id")
    sender = models.TextField(verbose_name="from")
    recipient = models.TextField(verbose_name="to")

    class Meta:
        db_table = "queues_auditjournal"
        ordering = ("id",)
        constraints = (models.CheckConstraint(condition=~Q(chain=""), name="auditjournal_chain_not_empty"),)
        indexes = (models.Index(fields=("chain", "id"), name="auditjournal_chain"),)

    def __str__(self) -> str:
        return f"{self.chain}: {self.event} {self.record_id}"
