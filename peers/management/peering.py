"""Shared by the commands of peerbus: options to reach a broker, and its errors in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from peers.connection import check_url
from peers.errors import InvalidEnvelope, WeakSecret
from queues.management.shell import REFUSED, USAGE, secret_from
from wire.client.errors import ClientError

DEFAULT_URL = "ws://127.0.0.1:8000/ws/peerbus"
INTERRUPTED = 130


def add_url_argument(parser: CommandParser) -> None:
    """--url."""
    parser.add_argument(
        "--url", default=DEFAULT_URL, metavar="URL", help="the broker (default: %(default)s); wss:// for TLS"
    )


def add_peer_arguments(parser: CommandParser) -> None:
    """--url, --token, --token-file, --name and the secret."""
    add_url_argument(parser)
    token = parser.add_mutually_exclusive_group()
    token.add_argument(
        "--token", metavar="KEY", help="an API key for peerbus (default: PEERBUS_TOKEN); ps shows it"
    )
    token.add_argument("--token-file", metavar="FILE", help="a file with the API key; - is standard input")
    parser.add_argument("--name", required=True, metavar="NAME", help="the name to register; another client loses it")
    secret = parser.add_mutually_exclusive_group()
    secret.add_argument(
        "--secret", metavar="SECRET", help="the secret of all peers, 32 bytes or more (default: PEERBUS_HMAC_SECRET)"
    )
    secret.add_argument("--unsigned", action="store_true", help="sign nothing, and accept unsigned messages")


def checked_url(url: str) -> str:
    """Return a WebSocket URL. Raises CommandError if it is none."""
    try:
        check_url(url)
    except ValueError as error:
        raise CommandError(str(error), returncode=USAGE) from error
    return url


def given_token(options: dict[str, Any]) -> str | None:
    """Return the token of --token or --token-file; None without either. Raises CommandError."""
    path = options["token_file"]
    token: str | None = options["token"] if path is None else secret_from(path)
    return token


def peer_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of PeerClient and AsyncPeerClient. Raises CommandError for a bad URL, or no secret."""
    url = checked_url(options["url"])
    secret = None if options["unsigned"] else options["secret"] or settings.PEERBUS_HMAC_SECRET
    if secret == "":
        raise CommandError(
            "There is no secret: give --secret, set PEERBUS_HMAC_SECRET, or say --unsigned.", returncode=USAGE
        )
    token = given_token(options) or settings.PEERBUS_TOKEN
    if not token:
        raise CommandError("There is no API key: give --token-file, or set PEERBUS_TOKEN.", returncode=USAGE)
    return {"url": url, "token": token, "name": options["name"], "secret": secret}


@contextmanager
def explained() -> Iterator[None]:
    """Turn exceptions of the clients into a CommandError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (InvalidEnvelope, WeakSecret) as error:
        raise CommandError(str(error), returncode=USAGE) from error
    except (ClientError, OSError) as error:
        raise CommandError(f"{type(error).__name__}: {error}", returncode=REFUSED) from error
    except KeyboardInterrupt:
        raise CommandError("Interrupted.", returncode=INTERRUPTED) from None
