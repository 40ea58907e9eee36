"""Logging in while a synchronous standby is away."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.signals import user_logged_in
from django.db import connection
from django.test import Client
from django.urls import reverse


def setting() -> str:
    with connection.cursor() as cursor:
        cursor.execute("show synchronous_commit")
        (value,) = cursor.fetchone()
    return str(value)


@pytest.mark.django_db(transaction=True)
def test_a_log_in_waits_for_no_standby_and_what_follows_does(client: Client) -> None:
    seen: list[str] = []

    def note(**_: Any) -> None:
        seen.append(setting())

    get_user_model().objects.create_superuser("ada", password="secret of ada")
    user_logged_in.connect(note)
    try:
        answer = client.post(reverse("admin:login"), {"username": "ada", "password": "secret of ada"})
    finally:
        user_logged_in.disconnect(note)
    assert answer.status_code == 302
    assert seen == ["local"]
    assert setting() == "on"
