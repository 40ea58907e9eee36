"""The admin behind a proxy that speaks TLS."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from brokersite.environment import CHECKOUT

SHOW = (
    "from django.conf import settings as s;"
    "print(s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.SECURE_PROXY_SSL_HEADER, s.SECURE_HSTS_SECONDS,"
    " s.CSRF_TRUSTED_ORIGINS)"
)


def settings_with(**environment: str) -> str:
    given = {**os.environ, "DATABASE_URL": "postgresql://localhost/none", **environment}
    given["DJANGO_SETTINGS_MODULE"] = "brokersite.settings"
    shown = subprocess.run([sys.executable, "-c", SHOW], env=given, cwd=CHECKOUT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout.strip()


def test_one_setting_makes_the_cookies_secure_and_the_proxys_word_believed() -> None:
    assert settings_with() == "False False None 0 []"
    given = {"BROKER_TLS_PROXY": "on", "BROKER_HSTS_SECONDS": "60", "CSRF_TRUSTED_ORIGINS": "https://broker.example"}
    assert settings_with(**given) == (
        "True True ('HTTP_X_FORWARDED_PROTO', 'https') 60 ['https://broker.example']"
    )


@pytest.fixture
def proxied(settings: Any) -> None:
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    settings.SESSION_COOKIE_SECURE = settings.CSRF_COOKIE_SECURE = True
    settings.ALLOWED_HOSTS = ["broker.example"]


@pytest.mark.django_db
@pytest.mark.usefixtures("proxied")
def test_people_log_in_through_the_proxy_and_its_cookies_are_for_tls_alone() -> None:
    get_user_model().objects.create_superuser("admin", "", "right")
    through = {"HTTP_HOST": "broker.example", "HTTP_X_FORWARDED_PROTO": "https", "HTTP_ORIGIN": "https://broker.example"}
    client = Client(enforce_csrf_checks=True, **through)  # type: ignore[arg-type]
    client.get("/admin/login/")
    token = client.cookies["csrftoken"].value
    given = {"username": "admin", "password": "right", "csrfmiddlewaretoken": token, "next": "/admin/"}
    headers = {"HTTP_REFERER": "https://broker.example/admin/login/"}
    response = client.post("/admin/login/", given, **headers)  # type: ignore[arg-type]
    assert response.status_code == 302
    assert all(client.cookies[name]["secure"] for name in ("csrftoken", "sessionid"))
