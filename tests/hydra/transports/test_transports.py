"""Common parts of all transports: lookup by address, and error texts."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from hydra.transports import check
from hydra.transports.address import parse_node_address
from hydra.transports.base import TransportError, TransportOptions
from hydra.transports.error_texts import reason

SECRET = TransportOptions(secret=b"open sesame")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "fifo:///run/hydra", "irc://127.0.0.1/hydra"])
def test_a_secret_protects_streams(address: str) -> None:
    check(parse_node_address(address), SECRET)


def test_a_secret_and_datagrams_are_refused_before_anything_is_opened() -> None:
    with pytest.raises(TransportError, match=r"^udp://127\.0\.0\.1:1: a shared secret cannot protect datagrams"):
        check(parse_node_address("udp://127.0.0.1:1"), SECRET)
    check(parse_node_address("udp://127.0.0.1:1"), TransportOptions())


def test_a_node_without_irc_needs_no_irc_library() -> None:
    code = "import sys, hydra.transports; print('irc' in sys.modules, 'hydra.transports.irc' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "False False\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, "closed by the other side"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "refused"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "closed by the other side"),
        (ConnectionResetError(), "reset by the other side"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "Network is unreachable"),
        (TransportError("it knows another secret"), "it knows another secret"),
        (ValueError(), "ValueError"),
    ],
)
def test_an_end_is_told_in_words(error: Exception | None, words: str) -> None:
    assert reason(error) == words
