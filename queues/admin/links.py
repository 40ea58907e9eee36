"""Links from one page to another, each kind fetched in one query for a whole page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.urls import reverse
from django.utils.safestring import SafeString

from queues.admin.columns import anchor
from queues.engine.api import first_id
from queues.models import Message, Queue


def page_of(model: str, pk: object) -> str:
    """The address of a row's page."""
    return reverse(f"admin:queues_{model}_change", args=[pk])


def listed(model: str) -> str:
    """The address of a list."""
    return reverse(f"admin:queues_{model}_changelist")


def message_pages(ids: Iterable[int]) -> dict[int, str]:
    """The addresses of messages' pages by their first ids; those that have left the store are not in it."""
    wanted = set(ids)
    if not wanted:
        return {}
    found = Message.objects.filter(Q(pk__in=wanted) | Q(origin_id__in=wanted)).values_list("pk", "origin_id")
    return {origin or pk: page_of("message", pk) for pk, origin in found}


def queue_pages(names: Iterable[str]) -> dict[str, str]:
    """The addresses of queues' pages by their names."""
    wanted = set(names)
    if not wanted:
        return {}
    found = Queue.objects.filter(name__in=wanted).values_list("name", "pk")
    return {name: page_of("queue", pk) for name, pk in found}


def job_message(jid: str) -> int | None:
    """The first id of a job's message, or None if this is no jid."""
    try:
        return first_id(UUID(jid.rpartition(":")[2]))
    except ValueError:
        return None


def link(pages: Mapping[Any, str], key: object, text: object) -> SafeString:
    """The text, and around it a link if there is a page."""
    return anchor(pages.get(key), text)
