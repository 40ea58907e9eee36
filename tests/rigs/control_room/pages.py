"""Every page of the admin, as an address: one list for the tests of query counts and for the benches.

Most come from the site's registered models: list, search, form, object, history, deletion, and the question that an
action of the list asks. What a model's own page needs beside that is written out below them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.models import User
from django.db.models import Model
from django.http import HttpRequest
from django.test import RequestFactory
from django.urls import reverse
from django.utils.http import urlencode

from queues import models

#: Actions of lists that ask before they do anything; the others act at once, and have no page of their own.
ASKING = frozenset(
    {
        "delete_selected", "purge", "put_back", "move", "copy", "delay", "deliver_now", "remove", "disconnect",
        "free_name", "forget_selected", "revoke",
    }
)  # fmt: skip
#: Rows that an action is asked for at once.
SELECTED = 50


@dataclass(frozen=True, slots=True)
class Page:
    """One page. `form` is what is posted to it, if anything is."""

    name: str
    address: str
    form: Mapping[str, object] | None = None
    #: The status of its answer.
    status: int = 200


def admin_pages(user: User) -> list[Page]:
    """Every page that a user who may do everything sees, for what the default database holds now.

    The page of an object is that of the first one in its table; where there is none, it is left out.
    """
    request = RequestFactory().get("/")
    request.user = user
    pages = [*_of_the_site(user)]
    for model, model_admin in admin.site._registry.items():
        pages += _of_model(model, model_admin, request)
    for found in (_queues, _flows, _messages, _archive, _figures, _audit, _etl, _access, _connections, _peers, _hydra):
        pages += found()
    return pages


def _address(page: str, *arguments: object, **asked: Any) -> str:
    query = urlencode(asked, doseq=True)
    return reverse(f"admin:{page}", args=arguments) + (f"?{query}" if query else "")


def _first(model: type[Model], **fields: object) -> Any:
    """An object of this model; None: there is none. Without an order, which a large table may have no index for."""
    return next(iter(model._default_manager.filter(**fields).order_by()[:1]), None)


def _of_the_site(user: User) -> Iterator[Page]:
    yield Page("front page", _address("index"))
    yield Page("front page, refresh", _address("state"))
    yield Page("front page, end a session", _address("end_backend", 1, started="1.5"), status=302)
    yield Page("password", _address("password_change"))
    yield Page("password changed", _address("password_change_done"))
    yield Page("password of a user", _address("auth_user_password_change", user.pk))
    yield Page("texts for scripts", _address("jsi18n"))
    found = {"app_label": "queues", "model_name": "queue", "field_name": "dead_letter_queue", "term": "a"}
    yield Page("choice of a queue", _address("autocomplete", **found))
    for label in sorted({model._meta.app_label for model in admin.site._registry}):
        yield Page(f"models of {label}", _address("app_list", label))


def _of_model(model: type[Model], model_admin: admin.ModelAdmin[Any], request: HttpRequest) -> Iterator[Page]:
    """The pages that the admin of any model has."""
    name = f"{model._meta.app_label}_{model._meta.model_name}"
    address = partial(_address, f"{name}_changelist")
    if model is not models.AuditRow:  # whose list is always that of one chain
        yield Page(f"{name} list", address())
        if model_admin.search_fields:
            yield Page(f"{name} list, search", address(q="a"))
    if model_admin.has_add_permission(request):
        yield Page(f"{name} add", _address(f"{name}_add"))
    pks = list(model._default_manager.order_by().values_list("pk", flat=True)[:SELECTED])
    if not pks or model_admin.get_object(request, str(pks[0])) is None:
        return
    yield Page(f"{name} change", _address(f"{name}_change", pks[0]))
    yield Page(f"{name} history", _address(f"{name}_history", pks[0]))
    if model_admin.has_delete_permission(request):
        yield Page(f"{name} delete", _address(f"{name}_delete", pks[0]))
    for action in ASKING & set(model_admin.get_actions(request)):
        asked = {"action": action, ACTION_CHECKBOX_NAME: pks}
        # Actions on messages have a page of their own for the question, which is below.
        yield Page(f"{name} action {action}", address(), asked, 302 if model is models.Message else 200)


def _queues() -> Iterator[Page]:
    yield Page("queues, export definitions", _address("queues_queue_export_definitions"))
    yield Page("queues, import definitions", _address("queues_queue_import_definitions"))
    yield Page("queues, by state of delivery", _address("queues_queue_changelist", paused__exact=1))
    if queue := _first(models.Queue, kind="queue"):
        yield Page("queue, last day", _address("queues_queue_change", queue.pk, span="day"))
        yield Page("queue, last month", _address("queues_queue_change", queue.pk, span="month"))
        yield Page("queue, clone", _address("queues_queue_add", clone=queue.pk))
        yield Page("queue, purge", _address("queues_queue_purge", queue.pk))


def _flows() -> Iterator[Page]:
    yield Page("topics", _address("queues_subscription_topics"))
    yield Page("routes, picture", _address("queues_route_picture"))
    if queue := _first(models.Queue, kind="queue"):
        yield Page("routes, picture around a queue", _address("queues_route_picture", around=f"queue:{queue.name}"))


def _messages() -> Iterator[Page]:
    listed, found = partial(_address, "queues_message_changelist"), partial(_address, "queues_message_find")
    yield Page("messages, find", found())
    yield Page("messages, publish", _address("queues_message_publish"))
    yield Page("messages, reasons", _address("queues_message_reasons"))
    queue = _first(models.Queue, kind="queue")
    if queue is None:
        return
    for state in models.State:
        yield Page(f"messages of a queue, {state.label}", listed(queue=queue.pk, state=int(state)))
        yield Page(f"messages, {state.label}", listed(state=int(state)))
        if message := _first(models.Message, state=state):
            yield Page(f"message, {state.label}", _address("queues_message_change", message.pk))
            yield Page(f"message, {state.label}, after it", listed(after=message.pk))
    searches: dict[str, dict[str, object]] = {
        "queue": {"queue": queue.name}, "queue and state": {"queue": queue.name, "state": "dead"},
        "queue and reason": {"queue": queue.name, "state": "dead", "reason": "needle"},
        "queue and text": {"queue": queue.name, "text": "needle"}, "text": {"text": "needle"},
        "leased": {"state": "leased"}, "key": {"key": "key"}, "key and queue": {"key": "key", "queue": queue.name},
        "header": {"header": "tenant", "value": "a"}, "protocol": {"protocol": "blipmq"},
        "time": {"since": "2020-01-01", "until": "2020-01-02"}, "finished": {"state": "finished"},
        "finished, queue": {"state": "finished", "queue": queue.name},
        "finished, key": {"state": "finished", "key": "key"},
        "finished, text": {"state": "finished", "text": "needle"},
    }  # fmt: skip
    if key := _first(models.ApiKey):
        searches["producer"] = {"producer": key.name}
    for words, asked in searches.items():
        yield Page(f"messages, find by {words}", found(**asked))
    operate = partial(_address, "queues_message_operate")
    for action in models.BulkAction:
        yield Page(f"messages, {action} what is found", operate(action=action, scope="all", queue=queue.name))
    if message := _first(models.Message, queue=queue):
        for action in models.BulkAction:
            yield Page(f"messages, {action} selected", operate(action=action, scope="selected", ids=message.pk))
        yield Page("message, edit and publish again", _address("queues_message_publish", **{"from": message.pk}))
        yield Page("message, download", _address("queues_message_payload", message.pk))


def _archive() -> Iterator[Page]:
    listed = partial(_address, "queues_archivedmessage_changelist")
    yield Page("archive, all that is kept", listed(within="all"))
    message = _first(models.ArchivedMessage, payload__isnull=False)
    if message is not None:
        yield Page("archive, of a queue", listed(within="24", queue=message.queue_id))
        yield Page("archive, download", _address("queues_archivedmessage_payload", message.pk))
        copy = {"action": models.BulkAction.COPY, "scope": "selected", "ids": message.pk, "state": "finished"}
        yield Page("archive, copy", _address("queues_message_operate", **copy))
        publish = {"from": message.pk, "finished": "1"}
        yield Page("archive, publish again", _address("queues_message_publish", **publish))


def _figures() -> Iterator[Page]:
    queue = _first(models.Queue, kind="queue")
    for span in ("hour", "day", "month"):
        yield Page(f"history, last {span}", _address("queues_queuesample_changelist", span=span))
        if queue is not None:
            asked = {"span": span, "queue": queue.name}
            yield Page(f"history of a queue, last {span}", _address("queues_queuesample_changelist", **asked))


def _audit() -> Iterator[Page]:
    if chain := _first(models.AuditChain):
        for words, asked in {
            "": {}, ", id": {"q": "id:message:1"}, ", from": {"q": "from:alice"}, ", to": {"q": "to:bob"},
            ", event": {"event": "deliver"},
        }.items():  # fmt: skip
            yield Page(f"audit rows{words}", _address("queues_auditrow_changelist", chain=chain.pk, **asked))


def _etl() -> Iterator[Page]:
    yield Page("ETL, start", _address("queues_etlrun_start"))


def _access() -> Iterator[Page]:
    if key := _first(models.ApiKey):
        yield Page("API key, rotate", _address("queues_apikey_rotate", key.pk))


def _connections() -> Iterator[Page]:
    for order in ("unsettled", "latest", "oldest"):
        yield Page(f"connections, {order}", _address("queues_connection_changelist", order=order))
    if connection := _first(models.Connection):
        yield Page("connection, disconnect", _address("queues_connection_disconnect", connection.pk))


def _peers() -> Iterator[Page]:
    if peer := _first(models.Mailbox):
        for act in ("disconnect", "free_name"):
            yield Page(f"peer, {act}", _address(f"queues_mailbox_{act}", peer.pk))


def _hydra() -> Iterator[Page]:
    from hydra.models import Node

    yield Page("Hydra nodes, last month", _address("hydra_node_changelist", span="month"))
    if node := _first(Node):
        yield Page("Hydra node, resign", _address("hydra_node_resign", node.pk))
        for act in ("drop", "disconnect_link"):
            yield Page(f"Hydra node, {act}", _address(f"hydra_node_{act}", node.pk, 1))
