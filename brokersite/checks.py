"""System checks of the site: its secrets, its debug pages, its packages; before a deployment what others can reach."""

from __future__ import annotations

import datetime
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register

from brokersite.environment import Environment
from brokersite.packages import ADVICE, sharing_distributions

LOCAL_HOSTS = {"localhost", "127.0.0.1", "[::1]", ".localhost"}

#: Bytes of the secret that peers share.
SHORTEST_HMAC_SECRET: Final = 32
#: Secrets that stand in documentation, here and elsewhere.
PUBLISHED: Final = {
    "0123456789abcdef0123456789abcdef", "changeme", "dev-key", "fivewire", "letters-and-digits", "password", "postgres",
    "secret",
}  # fmt: skip
#: Settings that name files with secrets, and such files under DATA_DIR.
SECRET_FILES: Final = (
    "BROKER_TLS_KEY", "BROKER_HYDRA_TLS_KEY", "BROKER_HYDRA_IRC_TLS_KEY", "BROKER_HYDRA_IRC_ACCOUNT_PASSWORD_FILE",
    "BROKER_AUDIT_KEY",
)  # fmt: skip
KEPT_SECRETS: Final = ("secret_key", "development_key", "admin_password", "hydra_secret", "audit_key")
CERTIFICATES: Final = ("BROKER_TLS_CERT", "BROKER_HYDRA_TLS_CERT", "BROKER_HYDRA_IRC_TLS_CERT")
#: Days before the end of a certificate from which on it is warned of.
RENEWAL: Final = 21

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
    if settings.DEBUG and _others_reach_it():
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


@register(Tags.security, deploy=True)
def check_reachable(app_configs: Apps, **kwargs: Any) -> Iterator[CheckMessage]:
    """fivewire.W006 to W009: where others reach the site, what they reach is encrypted and guarded."""
    if not _others_reach_it():
        return
    if not settings.BROKER_TLS_CERT:
        yield Warning(
            "ALLOWED_HOSTS has names that others can reach, and the listeners have no certificate: on any address but "
            "loopback API keys and messages can be read on the way.",
            hint="Set BROKER_TLS_CERT and BROKER_TLS_KEY, or have the listeners stay on 127.0.0.1.",
            id="fivewire.W006",
        )
    if not (settings.BROKER_ALLOW or settings.BROKER_TLS_CLIENT_CA):
        yield Warning(
            "Overhop and SSPQ have no authentication, and neither networks nor client certificates guard them.",
            hint="Set BROKER_ALLOW or BROKER_TLS_CLIENT_CA, or have these listeners stay on 127.0.0.1, or off.",
            id="fivewire.W007",
        )
    if not settings.BROKER_TLS_PROXY:
        yield Warning(
            "ALLOWED_HOSTS has names that others can reach, and BROKER_TLS_PROXY is off: passwords and cookies of the "
            "admin travel in the clear.",
            hint="Have a proxy speak TLS, and set BROKER_TLS_PROXY=on.",
            id="fivewire.W008",
        )
    if "*" in settings.ALLOWED_HOSTS:
        yield Warning(
            "ALLOWED_HOSTS is *: links in pages lead to whatever host a request names.",
            hint="Name the hosts of the site.",
            id="fivewire.W009",
        )


@register(Tags.security, deploy=True)
def check_secrets(app_configs: Apps, **kwargs: Any) -> Iterator[CheckMessage]:
    """fivewire.W010: no secret is one that everybody knows, or too short. fivewire.W011: none can be read by others."""
    given = {one.name: str(getattr(settings, one.name, "")) for one in Environment.options() if one.secret}
    given["the password of DATABASE_URL"] = str(settings.DATABASES["default"].get("PASSWORD", ""))
    for name, value in given.items():
        if value in PUBLISHED:
            yield Warning(
                f"{name} has a value that stands in documentation.", hint="Give it a random one.", id="fivewire.W010"
            )
    if 0 < len(given["PEERBUS_HMAC_SECRET"].encode()) < SHORTEST_HMAC_SECRET:
        yield Warning(
            f"PEERBUS_HMAC_SECRET has fewer than {SHORTEST_HMAC_SECRET} bytes: peers refuse it.",
            hint="Give it a random one.",
            id="fivewire.W010",
        )
    named = [path for name in SECRET_FILES if (path := getattr(settings, name, None))]
    for path in [*map(Path, named), *(settings.DATA_DIR / name for name in KEPT_SECRETS)]:
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield Warning(
                f"{path} has a secret, and not only its owner may read it.",
                hint=f"chmod 600 {path}",
                id="fivewire.W011",
            )


@register(Tags.security, deploy=True)
def check_certificates(app_configs: Apps, **kwargs: Any) -> Iterator[CheckMessage]:
    """fivewire.W012: no certificate has ended, or ends soon."""
    now = datetime.datetime.now(datetime.UTC)
    for name in CERTIFICATES:
        if not (path := getattr(settings, name, None)):
            continue
        try:
            ends = x509.load_pem_x509_certificate(Path(path).read_bytes()).not_valid_after_utc
        except (OSError, ValueError):  # what uses it says so at its start
            continue
        if ends - now < datetime.timedelta(days=RENEWAL):
            yield Warning(
                f"The certificate of {name} {'has ended' if ends < now else 'ends'} on {ends:%Y-%m-%d}.",
                hint="Renew it, and send SIGHUP to runwire, which then shows the new one.",
                id="fivewire.W012",
            )


@register(Tags.security, deploy=True)
def check_weakened(app_configs: Apps, **kwargs: Any) -> Iterator[CheckMessage]:
    """fivewire.W013: no protocol is made weaker than it is."""
    if settings.BROKER_PEERBUS_RELAXED:
        yield Warning(
            "BROKER_PEERBUS_RELAXED is on: any API key may take a name that is free, and acknowledge any envelope.",
            hint="Unset it, unless peers were written for the reference server.",
            id="fivewire.W013",
        )
    if settings.BROKER_HYDRA_SECRET == "off" and not settings.BROKER_HYDRA_TLS_CERT:
        yield Warning(
            "BROKER_HYDRA_SECRET is off and there are no certificates: whoever reaches a node may lead the network.",
            hint="Set BROKER_HYDRA_SECRET, or BROKER_HYDRA_TLS_CERT, _KEY and _CA.",
            id="fivewire.W013",
        )


def _others_reach_it() -> bool:
    return not set(settings.ALLOWED_HOSTS) <= LOCAL_HOSTS


def _is_generated(secret: str) -> bool:
    try:
        return (settings.DATA_DIR / "secret_key").read_text().strip() == secret
    except OSError:
        return False
