"""System checks of the site: its secret, its debug pages, its packages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register

from brokersite.packages import ADVICE, sharing_distributions

LOCAL_HOSTS = {"localhost", "127.0.0.1", "[::1]", ".localhost"}

Apps = Sequence[AppConfig] | None


@register(Tags.security, deploy=True)
def check_shared_secret(app_configs: Apps, **kwargs: Any) -> Iterator[CheckMessage]:
    """fivewire.W002: where the database may be shared the secret is set, not generated."""
    if settings.DATABASE_URL and _is_generated(settings.BROKER_KEY_PEPPERS[0]):
        yield Warning(
            "DATABASE_URL is set and SECRET_KEY is the one generated for this checkout. Another host on this "
            "database would generate its own, and refuse the API keys made here.",
            hint="Set SECRET_KEY, or BROKER_KEY_PEPPERS, on every host; the one in use lies in "
            f"{settings.DATA_DIR / 'secret_key'}.",
            id="fivewire.W002",
        )


@register(Tags.security)
def check_debug(app_configs: Apps, **kwargs: Any) -> Iterator[CheckMessage]:
    """fivewire.W003: no debug pages, which show settings and messages, for other hosts."""
    if settings.DEBUG and not set(settings.ALLOWED_HOSTS) <= LOCAL_HOSTS:
        yield Warning(
            "DEBUG is on and ALLOWED_HOSTS has names that others can reach: an error page shows them settings "
            "and messages.",
            hint="Unset DEBUG.",
            id="fivewire.W003",
        )


@register(Tags.compatibility)
def check_shared_packages(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """fivewire.W004: no other distribution has written into the directory of one of our packages."""
    return [
        Warning(
            f"{other} has installed a package {name} into the same directory as Fivewire's. {other} does not work "
            "there, and removing either breaks Fivewire.",
            hint=ADVICE,
            id="fivewire.W004",
        )
        for other, name in sharing_distributions()
    ]


def _is_generated(secret: str) -> bool:
    try:
        return (settings.DATA_DIR / "secret_key").read_text().strip() == secret
    except OSError:
        return False
