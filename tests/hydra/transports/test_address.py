"""Addresses: what is understood, how they are written, and what is said about wrong ones."""

from __future__ import annotations

import pytest

from hydra.transports.address import (
    FifoAddress,
    IrcAddress,
    TcpAddress,
    UdpAddress,
    parse_node_address,
)
from wire.net.address import AddressError


@pytest.mark.parametrize(
    ("text", "address", "known_as"),
    [
        ("127.0.0.1:7000", TcpAddress("127.0.0.1", 7000), "127.0.0.1:7000"),
        (" tcp://Node-1.Example.org:7000 ", TcpAddress("node-1.example.org", 7000), "node-1.example.org:7000"),
        ("TCP://localhost", TcpAddress("localhost", 6174), "localhost:6174"),
        ("10.0.0.1", TcpAddress("10.0.0.1", 6174), "10.0.0.1:6174"),
        ("host_1.:0", TcpAddress("host_1", 0), "host_1:0"),
        ("[::1]:7000", TcpAddress("::1", 7000), "[::1]:7000"),
        ("[2001:DB8:0::1]", TcpAddress("2001:db8::1", 6174), "[2001:db8::1]:6174"),
        ("udp://10.0.0.1:7000", UdpAddress("10.0.0.1", 7000), "udp://10.0.0.1:7000"),
        ("udp://[::]", UdpAddress("::", 6174), "udp://[::]:6174"),
        ("irc://irc.example.org:6697/hydra1", IrcAddress("irc.example.org", 6697, "hydra1"), None),
        ("irc://[::1]/Hydra[1]", IrcAddress("::1", 6667, "Hydra[1]"), "irc://[::1]:6667/Hydra[1]"),
    ],
)
def test_an_address_is_known_by_one_form(text: str, address: object, known_as: str | None) -> None:
    assert parse_node_address(text) == address
    assert str(parse_node_address(text)) == (known_as or text)
    assert parse_node_address(str(address)) == address


def test_pipes_lie_in_a_directory() -> None:
    address = parse_node_address("fifo:///run//hydra/./a b.c")
    assert isinstance(address, FifoAddress)
    assert str(address) == "fifo:///run/hydra/a b.c"
    assert (address.inward, address.outward) == ("/run/hydra/a b.c.in", "/run/hydra/a b.c.out")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no host: write HOST:PORT, for example 127.0.0.1:6174"),
        ("tcp://", "has no host"),
        (":7000", "write 0.0.0.0 or [::] before the port to listen everywhere"),
        ("host:", "the port must be a number from 0 to 65535, not ''"),
        ("host:65536", "the port must be a number from 0 to 65535, not '65536'"),
        ("host:²", "the port must be a number"),
        ("host:-1", "the port must be a number"),
        ("::1", "write an IPv6 address in brackets, for example [::1]:6174"),
        ("1::2:7000", "write an IPv6 address in brackets"),
        ("[::1", "write an IPv6 address and its port like [::1]:6174"),
        ("[::1]7000", "write an IPv6 address and its port like [::1]:6174"),
        ("[::1]:", "the port must be a number"),
        ("[localhost]:7000", "the text in brackets is no IPv6 address"),
        ("127.0.0.256:7000", "'127.0.0.256' is no IPv4 address"),
        ("127.1", "'127.1' is no IPv4 address"),
        ("a b:7000", "'a b' is no host name or IP address"),
        ("user@host:7000", "'user@host' is no host name or IP address"),
        ("host/x:7000", "is no host name or IP address"),
        ("-host:7000", "is no host name or IP address"),
        ("a..b:7000", "is no host name or IP address"),
        (f"{'a' * 64}:1", "is no host name or IP address"),
        ("http://host:80", "begins with http://: write tcp://, udp://, fifo:// or irc://"),
        ("fifo://run/hydra", "write fifo:///DIRECTORY/NAME, with three slashes"),
        ("fifo:///", "names no pipes"),
        ("fifo:///run/", "names no pipes"),
        ("fifo:///run/..", "names no pipes"),
        ("fifo:///run/a\nb", "must not have control characters"),
        (f"fifo:///run/{'a' * 252}", "must not have more than 251 bytes"),
        ("irc://host:6667", "has no nick: write irc://SERVER:PORT/NICK"),
        ("irc://host/", "has no nick"),
        ("irc:///nick", "has no host"),
        ("irc://host/#channel", "'#channel' is no nick"),
    ],
)
def test_a_wrong_address_is_told_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_node_address(text)
    assert says in str(caught.value)
    assert str(caught.value).startswith(repr(text))
