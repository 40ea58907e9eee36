"""API keys: made here and shown once, changed in what they allow, revoked, never deleted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Count
from django.http import HttpRequest, HttpResponse

from queues.admin.audited import AuditedAdmin, object_page, render_page, row_action
from queues.admin.columns import column
from queues.admin.generic import ModelForm
from queues.models import ApiKey, Connection, Subscription
from queues.operations import keys

SCOPES = keys.SCOPES
#: The fields of a key beside its scopes.
KNOWN = ("last_login", "created_at", "revoked_at", "old_until")
#: The attribute of a row that was just made that has the key itself.
SHOWN_ONCE = "shown_once"
PATTERNS = "Globs over names of queues and topics, with commas between them. Empty: nothing; *: everything."


class ApiKeyForm(ModelForm):
    """The scopes of a key."""

    protocols = forms.MultipleChoiceField(
        choices=[(name, name) for name in keys.PROTOCOLS], widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose the protocols that it is good for."},
    )  # fmt: skip

    class Meta:
        model = ApiKey
        fields = ("name", *SCOPES)
        help_texts = dict.fromkeys(("publish", "consume", "manage"), PATTERNS)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None and not self.instance.protocols:
            self.initial["protocols"] = list(keys.PROTOCOLS)

    def clean_protocols(self) -> list[str]:
        """The chosen ones; all of them are stored as none, which means any."""
        chosen: list[str] = self.cleaned_data["protocols"]
        return [] if set(chosen) == set(keys.PROTOCOLS) else chosen


class NewApiKeyForm(ApiKeyForm):
    """A new key, whose value may be given."""

    value = forms.CharField(
        required=False, strip=False, max_length=1000, label="key", help_text="Empty: 256 random bits.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )  # fmt: skip

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if "name" in data:
            try:
                row, self.text = keys.new_key(data["name"], data.get("value") or None)
            except (keys.KeyExists, keys.InvalidKey) as error:
                raise ValidationError(str(error)) from error
            self.instance.digest, self.instance.hint = row.digest, row.hint
        return data


class RotateForm(forms.Form):
    """The time for which the value before is accepted beside the new one."""

    hours = forms.FloatField(
        min_value=0, max_value=keys.MAX_GRACE.total_seconds() / 3600, initial=24, label="Accept the old key, hours",
        help_text="0: it is refused at once. Connections that were made with it go on until they end.",
    )  # fmt: skip


@admin.register(ApiKey)
class ApiKeyAdmin(AuditedAdmin):
    list_display = (
        "name", "begins", "allowed_protocols", "publish", "consume", "manage", "last_login", "created_at", "revoked_at",
    )  # fmt: skip
    list_filter = (("revoked_at", admin.EmptyFieldListFilter),)
    search_fields = ("name",)
    list_select_related = ("use",)
    actions = ("revoke",)
    change_form_template = "admin/queues/apikey_change_form.html"
    pages = {"rotate": "<int:id>/rotate/"}

    def get_form(self, request: HttpRequest, obj: ApiKey | None = None, change: bool = False, **kwargs: Any) -> Any:
        kwargs["form"] = ApiKeyForm if obj else NewApiKeyForm
        return super().get_form(request, obj, change, **kwargs)

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> list[Any]:
        scopes = ["name", *SCOPES]
        return [*scopes, "value"] if obj is None else [*scopes, "begins", *KNOWN]

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> list[str]:
        if obj is None:
            return []
        fixed = ["name", "begins", *KNOWN]
        return [*fixed, *SCOPES] if obj.revoked_at else fixed

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    begins = column("begins with", lambda key: f"{key.hint}…" if key.hint else "-")
    allowed_protocols = column("protocols", lambda key: ", ".join(key.protocols) or "all")
    last_login = column("last log-in", lambda key: str(key.use) if hasattr(key, "use") else "-")

    @object_page("change")
    def rotate_view(self, request: HttpRequest, key: ApiKey) -> HttpResponse:
        """Give the key another value, shown once, and say how long the one before is accepted."""
        form, title = RotateForm(request.POST if request.method == "POST" else None), f"Rotate the key {key.name}"
        if form.is_valid():
            try:
                with transaction.atomic():
                    key, text = keys.rotate_key(key.name, timedelta(hours=form.cleaned_data["hours"]))
                    self.log_done(request, key, "rotate", "Rotated.")
            except (keys.InvalidKey, keys.KeyExists) as error:
                form.add_error(None, str(error))
            else:
                return render_page(self, request, "apikey_made", title, original=key, key=text)
        return render_page(self, request, "apikey_rotate", title, original=key, form=form)

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        if change:  # and nothing else, least of all that it is not revoked
            obj.save(update_fields=SCOPES)
        else:
            super().save_model(request, obj, form, change)
            vars(obj)[SHOWN_ONCE] = form.text

    def response_add(self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None) -> HttpResponse:
        """A page with the key: a message would put it into a cookie."""
        key = vars(obj).pop(SHOWN_ONCE)
        title, weakness = f"The key {obj.name}", keys.weakness(key)
        return render_page(self, request, "apikey_made", title, original=obj, key=key, weakness=weakness)

    revoke = row_action(
        lambda key: keys.revoke_key(key.name), "Revoke; live connections end within a second", "revoke", "Revoked",
        question="This ends the live connections of the keys within a second, and no client can use them again:",
        button="Yes, revoke",
    )  # fmt: skip

    def lines_of(self, request: HttpRequest, objects: Sequence[ApiKey]) -> list[str]:
        """With the connections and subscriptions that a key has now."""
        chosen = [key.pk for key in objects]
        counts = [
            dict(rows.filter(**{f"{field}__in": chosen}).order_by().values_list(field).annotate(Count("pk")))
            for rows, field in ((Connection.objects.all(), "key"), (Subscription.objects.all(), "owner"))
        ]
        return [
            f"{key}: live connections {counts[0].get(key.pk, 0):,}, subscriptions {counts[1].get(key.pk, 0):,}, "
            f"last log-in {self.last_login(key)}"
            for key in objects
        ]
