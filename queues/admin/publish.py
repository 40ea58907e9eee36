"""Publishing by hand: a new message, or a copy of one that was edited."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from queues.admin.audited import demand, operator, render_page
from queues.admin.generic import ModelAdmin
from queues.admin.life import ID
from queues.api import publish
from queues.errors import BrokerError
from queues.formats.contents import NoSuchContent, json_of_msgpack, msgpack_of_json
from queues.models import ArchivedMessage, Content, Message, Queue
from queues.operations.audit_log import record

#: Bytes of a body that a form shows for editing: larger ones are copied as they are.
MAX_EDITED = 256 * 1024


class PublishForm(forms.Form):
    """A message, with the arguments of `queues.api.publish`."""

    address = forms.CharField(max_length=262, help_text="A queue's name, or topic:NAME.")
    body = forms.CharField(widget=forms.Textarea(attrs={"rows": 14}), required=False, strip=False)
    is_base64 = forms.BooleanField(required=False, label="The body is base64", help_text="For bytes that are no text.")
    original = forms.IntegerField(required=False, widget=forms.HiddenInput())
    content_type = forms.ChoiceField(
        choices=[("", "bytes"), *((label, label) for value, label in Content.choices if value != Content.LETTER)],
        required=False, help_text="MessagePack is written as JSON, unless it is base64.",
    )  # fmt: skip
    headers = forms.CharField(required=False, help_text="A JSON object.", widget=forms.Textarea(attrs={"rows": 4}))
    key = forms.CharField(required=False, max_length=1024, help_text="Unique in the queue while the message lives.")
    priority = forms.IntegerField(min_value=-100, max_value=100, initial=0)
    delay = forms.FloatField(required=False, min_value=0, help_text="Seconds.")
    ttl = forms.FloatField(required=False, min_value=0.001, help_text="Seconds; empty: the queue's.")

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or self.cleaned_data
        text = data.get("body", "")
        if data.get("is_base64"):
            try:
                data["bytes"] = base64.b64decode("".join(text.split()).encode(), validate=True)
            except (binascii.Error, ValueError) as error:
                self.add_error("body", f"It is no base64: {error}.")
        elif data.get("content_type") == Content.MSGPACK.label:
            try:
                data["bytes"] = msgpack_of_json(text)
            except NoSuchContent as error:
                self.add_error("body", f"MessagePack cannot be made of it: {error}.")
        else:
            # A browser sends each end of a line as CR LF; what is edited as text had LF.
            data["bytes"] = text.replace("\r\n", "\n").encode()
        return data

    def clean_headers(self) -> dict[str, Any] | None:
        text = self.cleaned_data["headers"]
        try:
            headers = json.loads(text) if text else None
        except (ValueError, RecursionError) as error:  # also for a number of thousands of digits
            raise forms.ValidationError("Enter valid JSON.") from error
        if headers is not None and not isinstance(headers, dict):
            raise forms.ValidationError("They are a JSON object.")
        return headers


def may_publish(request: HttpRequest) -> bool:
    """Whether the user may publish by hand."""
    return request.user.has_perms(("queues.view_message", "queues.change_message"))


def publish_view(model_admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """The page. `?to=NAME` fills in an address; `?from=ID` a message, with `&finished=1` one of the archive."""
    demand(may_publish(request))
    form = PublishForm(request.POST if request.method == "POST" else None, initial=_initial(model_admin, request))
    if request.method == "POST" and form.is_valid():
        try:
            return _publish(model_admin, request, form.cleaned_data)
        except (BrokerError, TypeError) as error:
            form.add_error(None, str(error))
    return render_page(model_admin, request, "message_publish", "Publish a message", form=form)


def _publish(model_admin: ModelAdmin, request: HttpRequest, data: dict[str, Any]) -> HttpResponse:
    original = data["original"]
    copy = "" if original is None else f", a copy of message {original}"
    with transaction.atomic():
        id = publish(
            data["address"], data["bytes"], headers=data["headers"] or None, delay=data["delay"], ttl=data["ttl"],
            key=data["key"] or None, priority=data["priority"], content_type=data["content_type"] or None,
        )  # fmt: skip
        record(operator(request), "publish", f"message:{id or 'dropped'}", f"{data['address']}{copy}")
    if id is None:
        model_admin.message_user(request, "The topic has no subscription: the message was dropped.", messages.WARNING)
        return HttpResponseRedirect(reverse("admin:queues_message_publish"))
    model_admin.message_user(request, f"Published message {id}{copy}.", messages.SUCCESS)
    return HttpResponseRedirect(reverse("admin:queues_message_change", args=[id]))


def _initial(model_admin: ModelAdmin, request: HttpRequest) -> dict[str, Any]:
    """The form's first values: the message that the address names."""
    id = request.GET.get("from", "")
    if request.method == "POST" or not ID.fullmatch(id):
        return {"address": request.GET.get("to", "")}
    row: Message | ArchivedMessage | None
    if "finished" in request.GET:
        row = ArchivedMessage.objects.with_id(int(id)).order_by("-finished_at").first()
    else:
        row = model_admin.get_object(request, id)
    if row is None or row.payload is None:
        model_admin.message_user(request, "The body of this message is not there any more.", messages.WARNING)
        return {}
    body = bytes(row.payload)
    if len(body) > MAX_EDITED:
        model_admin.message_user(request, "Its body is too large to be edited: copy the message.", messages.WARNING)
        return {}
    return _of_message(row, body)


def _of_message(row: Message | ArchivedMessage, body: bytes) -> dict[str, Any]:
    try:
        text, is_base64 = body.decode(), False
    except UnicodeDecodeError:
        text, is_base64 = "", True
    if row.content == Content.MSGPACK:
        text = json_of_msgpack(body) or ""
        is_base64 = not text
    if is_base64 or "\0" in text or "\r" in text:  # neither survives a form
        text, is_base64 = base64.encodebytes(body).decode(), True
    headers = row.headers
    if isinstance(headers, dict):
        headers = {name: value for name, value in headers.items() if name != "dead-letter"}
    name = Queue.objects.filter(pk=row.queue_id).values_list("name", flat=True).first()
    content = row.content if row.content not in (None, Content.LETTER) else None
    return {
        "original": getattr(row, "origin_id", None) or row.pk, "address": name or "", "body": text,
        "is_base64": is_base64,
        "headers": json.dumps(headers, ensure_ascii=False) if headers else "",
        "content_type": Content(content).label if content else "",
        "priority": -(row.pk >> 56) if isinstance(row, Message) else 0,
    }  # fmt: skip
