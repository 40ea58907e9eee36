"""API keys: hashed at rest, shown once, and what is known of their use."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from queues.models.moment import MomentField
from queues.models.postgres import ArrayField


class ApiKey(models.Model):
    """A key of a program. Empty `protocols` means any protocol; patterns are globs over queue and topic names."""

    name = models.CharField(max_length=100, unique=True)
    digest = models.CharField(max_length=64, unique=True, editable=False, help_text="HMAC-SHA-256 of the key.")
    hint = models.CharField(max_length=8, editable=False, help_text="The first characters of the key.")
    protocols = ArrayField(models.CharField(max_length=16), default=list, blank=True)
    publish = ArrayField(models.CharField(max_length=255), default=list, blank=True)
    consume = ArrayField(models.CharField(max_length=255), default=list, blank=True)
    manage = ArrayField(models.CharField(max_length=255), default=list, blank=True)
    created_at = MomentField(db_default=Now(), editable=False)
    revoked_at = MomentField(null=True, editable=False)
    old_digest = models.CharField(  # noqa: DJ001
        max_length=64, unique=True, null=True, editable=False, help_text="Of the value before the last rotation."
    )
    old_until = MomentField(
        "old value until", null=True, editable=False, help_text="Until then that value is accepted too."
    )

    class Meta:
        ordering = ("name",)
        verbose_name = "API key"

    def __str__(self) -> str:
        return self.name


class ApiKeyUse(models.Model):
    """The last log-in with an API key. A table of its own, so that to note it announces no change of the key."""

    key = models.OneToOneField(ApiKey, primary_key=True, on_delete=models.CASCADE, related_name="use")
    at = MomentField()
    protocol = models.TextField()
    address = models.TextField(blank=True)

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M}, {self.protocol}{f' from {self.address}' if self.address else ''}"
