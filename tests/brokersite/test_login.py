"""The admin's log-in: an address that goes on trying wrong passwords has to wait."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.http import HttpResponse
from django.test import Client

from brokersite import login
from queues.permissions import throttle

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _admin(monkeypatch: pytest.MonkeyPatch) -> None:
    get_user_model().objects.create_superuser("admin", "", "right")
    monkeypatch.setattr(login, "throttle", throttle.FailureThrottle())
    monkeypatch.setattr(throttle, "FIRST_DELAY", 600.0)
    monkeypatch.setattr(throttle, "MAX_DELAY", 600.0)


def log_in(password: str, address: str = "192.0.2.1") -> HttpResponse:
    given = {"username": "admin", "password": password}
    return Client(REMOTE_ADDR=address).post("/admin/login/?next=/admin/", given)  # type: ignore[return-value]


def test_after_a_few_wrong_passwords_the_right_one_is_not_looked_at_for_a_while() -> None:
    for _ in range(throttle.FREE + 1):
        assert b"Please enter the correct username" in log_in("wrong").content
    answer = log_in("right")
    assert answer.status_code == 200
    assert b"Too many wrong passwords from your address." in answer.content
    assert log_in("right", "192.0.2.2").status_code == 302


def test_a_person_who_mistypes_is_let_in() -> None:
    for _ in range(throttle.FREE):
        log_in("wrong")
    assert log_in("right").status_code == 302
