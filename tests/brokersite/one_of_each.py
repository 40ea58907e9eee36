"""An object of every model that the admin of Fivewire's own site shows. To be imported when Django is set up."""

from __future__ import annotations

from datetime import UTC, datetime

from django.contrib.auth.models import Group, User
from django.db.models import Model
from django_celery_results.models import GroupResult, TaskResult

from hydra.models import Event as HydraEvent
from hydra.models import Node as HydraNode
from tests.queues import one_of_each as of_the_broker


def one_of_each() -> list[Model]:
    """Made now, in the default database."""
    node = HydraNode.objects.create(name="alpha", voter="0" * 16)
    return [
        *of_the_broker.one_of_each(), node,
        HydraEvent.objects.create(node=node, at=datetime.now(UTC), kind="fault", term=1, text="<i>"),
        TaskResult.objects.create(task_id="t", content_type="application/json", content_encoding="utf-8"),
        GroupResult.objects.create(group_id="g", content_type="application/json", content_encoding="utf-8"),
        User.objects.create_user("someone"), Group.objects.create(name="some"),
    ]  # fmt: skip
