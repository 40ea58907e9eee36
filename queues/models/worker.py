"""Connected workers of jobs: a snapshot that every node writes about once a second."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from queues.models.moment import MomentField


class Worker(models.Model):
    """A live connection of a worker. Its node writes the row, and the database removes it with the node's.

    `subscriptions` has an object each: `sid` (str), `queue` (its name), `credits` and `active` (numbers). `jobs` has
    one for each of the oldest 100 jobs that it works on (`active` counts all): `jid`, `queue` (the name), `message`
    (the job's first id), `attempt`, `since` and `deadline`, both Unix times; `deadline` is null if there is none.
    """

    wid = models.UUIDField("worker", primary_key=True)
    # The constraint is in the migration: Django could not let it delete by itself.
    node = models.ForeignKey("queues.Node", on_delete=models.DO_NOTHING, related_name="workers", db_constraint=False)
    address = models.TextField()
    connected_at = MomentField()
    requests = models.BigIntegerField(db_default=0, help_text="Requests since it connected.")
    subscriptions = models.JSONField(default=list)
    jobs = models.JSONField(default=list)
    active = models.IntegerField(db_default=0, help_text="Jobs it works on now.")
    updated_at = MomentField(db_default=Now())

    class Meta:
        ordering = ("connected_at", "wid")

    def __str__(self) -> str:
        return f"worker {self.wid} from {self.address}"
