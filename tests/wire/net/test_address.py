from ipaddress import ip_network

import pytest

from wire.net.address import AddressError, HostPort, ip_address, is_allowed, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:5555", "127.0.0.1", 5555),
        (" localhost:0 ", "localhost", 0),
        ("broker.example.com:65535", "broker.example.com", 65535),
        ("[::1]:8888", "::1", 8888),
        ("[fe80::1%eth0]:8888", "fe80::1%eth0", 8888),
        ("[::]:9876", "::", 9876),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert parse_address(text) == HostPort(host, port)


@pytest.mark.parametrize("text", ["127.0.0.1:5555", "[::1]:8888", "localhost:0"])
def test_an_address_is_written_as_it_was_read(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", "has no port"),
        ("127.0.0.1", "has no port"),
        ("[::1]", "has no port"),
        (":5555", "has no host"),
        ("::1:5555", "in brackets"),
        ("[127.0.0.1]:5555", "no IPv6 address"),
        ("[::g]:5555", "no IPv6 address"),
        ("[::1:5555", "in brackets"),
        ("a b:5555", "no host name"),
        ("user@host:5555", "no host name"),
        ("host:", "the port must be a number from 0 to 65535, not ''"),
        ("host:-1", "the port must be a number"),
        ("host:65536", "the port must be a number"),
        ("host:5²", "the port must be a number"),
        ("host:http", "the port must be a number"),
    ],
)
def test_an_invalid_address_is_refused_with_the_reason(text: str, answer: str) -> None:
    with pytest.raises(AddressError, match=answer.replace("(", r"\(")):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("localhost.example.com", False),
    ],
)
def test_only_an_address_that_stays_on_this_machine_is_loopback(host: str, loopback: bool) -> None:
    assert HostPort(host, 1).is_loopback is loopback


def test_without_networks_every_client_is_let_in() -> None:
    assert is_allowed("203.0.113.9", ())


@pytest.mark.parametrize(
    ("ip", "allowed"),
    [
        ("10.1.2.3", True),
        ("11.1.2.3", False),
        ("::ffff:10.1.2.3", True),
        ("::ffff:11.1.2.3", False),
        ("fd00::1", True),
        ("fe80::1%eth0", False),
    ],
)
def test_only_clients_of_the_listed_networks_are_let_in(ip: str, allowed: bool) -> None:
    assert is_allowed(ip, [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]) is allowed


def test_an_ipv4_client_on_an_ipv6_socket_has_its_ipv4_address() -> None:
    assert str(ip_address("::ffff:192.0.2.1")) == "192.0.2.1"
    assert str(ip_address("2001:db8::1")) == "2001:db8::1"
