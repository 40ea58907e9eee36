"""Users and groups, as Django's admin has them, with their changes recorded in the chain of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin
from django.contrib.auth.admin import UserAdmin as StockUserAdmin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.http import HttpRequest, HttpResponse

from queues.admin.audited import AuditedAdmin

if TYPE_CHECKING:
    UserAdmin = StockUserAdmin[User]
else:
    UserAdmin = StockUserAdmin

admin.site.unregister((User, Group))


@admin.register(User)
class RecordedUserAdmin(AuditedAdmin, UserAdmin):
    show_full_result_count = True

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        with transaction.atomic():
            response: HttpResponse = super().user_change_password(request, id, form_url)
        return response


@admin.register(Group)
class RecordedGroupAdmin(AuditedAdmin, GroupAdmin):
    show_full_result_count = True
