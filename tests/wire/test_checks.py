"""wire.W001 and W002: what others can reach and nothing guards, or nothing encrypts."""

from __future__ import annotations

import pytest

from wire.checks import check_unencrypted, check_unguarded
from wire.net.address import parse_address

LOOPBACK = ("127.0.0.1:8888", "127.8.9.10:8888", "[::1]:8888", "localhost:8888", "[::ffff:127.0.0.1]:8888")
REACHABLE = ("0.0.0.0:8888", "[::]:8888", "192.0.2.1:8888", "[2001:db8::1]:8888", "broker.example:8888")


def warnings(
    *addresses: str, allow_list: bool = False, client_certificates: bool = False
) -> list[tuple[str | None, str]]:
    """Id and text of each warning."""
    found = check_unguarded(
        "SSPQ",
        [parse_address(address) for address in addresses],
        allow_list=allow_list,
        client_certificates=client_certificates,
    )
    return [(warning.id, str(warning.msg)) for warning in found]


@pytest.mark.parametrize("address", REACHABLE)
def test_an_address_that_others_reach_is_warned_of(address: str) -> None:
    [(identifier, text)] = warnings(address)
    assert identifier == "wire.W001"
    assert text.startswith(f"SSPQ listens on {address} without authentication: ")


@pytest.mark.parametrize("address", LOOPBACK)
def test_an_address_that_only_this_machine_reaches_is_not(address: str) -> None:
    assert warnings(address) == []


def test_each_address_counts_for_itself() -> None:
    found = warnings(LOOPBACK[0], REACHABLE[0], LOOPBACK[2], REACHABLE[2])
    assert [text.split()[3] for _, text in found] == [REACHABLE[0], REACHABLE[2]]
    assert warnings() == []


@pytest.mark.parametrize("guard", ["allow_list", "client_certificates"])
def test_an_allow_list_or_client_certificates_are_guard_enough(guard: str) -> None:
    assert warnings(*REACHABLE, **{guard: True}) == []


def test_the_warning_says_what_to_do() -> None:
    [warning] = check_unguarded("SSPQ", [parse_address("0.0.0.0:1")], allow_list=False, client_certificates=False)
    assert warning.hint is not None
    assert "BROKER_ALLOW" in warning.hint
    assert "BROKER_TLS_CLIENT_CA" in warning.hint
    assert not warning.is_serious()


def test_an_address_that_others_reach_without_tls_is_warned_of_with_the_settings_that_mend_it() -> None:
    addresses = [parse_address(address) for address in (*LOOPBACK, *REACHABLE)]
    found = check_unencrypted("BlipMQ", addresses, tls=False)
    assert [(warning.id, str(warning.msg).split()[3]) for warning in found] == [("wire.W002", one) for one in REACHABLE]
    assert "BROKER_TLS_CERT" in str(found[0].hint)
    assert check_unencrypted("BlipMQ", addresses, tls=True) == []
