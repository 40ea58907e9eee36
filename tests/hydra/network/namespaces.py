"""Network namespaces, one a node, with two networks between them: one for their links, one for everything else."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Final

LINKS: Final = "10.231.77"


class NotPossible(Exception):
    """This machine does not allow it."""


def ip(*arguments: str) -> None:
    """Run the ip command."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}"


def check_possible() -> None:
    """Raise NotPossible, with the reason, where namespaces and what connects them cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise NotPossible("network namespaces need root and the ip command")
    name = f"fw{os.getpid()}x"
    for make, unmake in (
        (["netns", "add", name], ["netns", "del", name]),
        (["link", "add", name, "type", "bridge"], ["link", "del", name]),
        (["link", "add", name, "type", "veth", "peer", "name", f"{name}y"], ["link", "del", name]),
    ):
        done = subprocess.run(["ip", *make], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotPossible(f"ip {' '.join(make)}: {done.stderr.strip()}")
        ip(*unmake)


class Namespaces:
    """So many namespaces, numbered from 1; number n has the addresses `links(n)` and, for the rest, `rest`.n."""

    def __init__(self, stack: contextlib.ExitStack, count: int) -> None:
        """They are gone when `stack` ends. Raises NotPossible."""
        check_possible()
        self.prefix = f"fw{os.getpid()}"
        # The machine itself is on this network, and perhaps on that of another test run.
        self.rest = f"10.{64 + os.getpid() // 256 % 64}.{os.getpid() % 256}"
        self.host = f"{self.rest}.254"
        """The machine itself, on the network for everything else."""
        for kind in "lr":
            bridge = self._bridge(kind)
            self._make(stack, ["link", "add", bridge, "type", "bridge"], ["link", "del", bridge])
            ip("link", "set", "dev", bridge, "up")
        ip("addr", "add", f"{self.host}/24", "dev", self._bridge("r"))
        for number in range(1, count + 1):
            name = self.name(number)
            self._make(stack, ["netns", "add", name], ["netns", "del", name])
            ip("-n", name, "link", "set", "lo", "up")
            for kind, network in (("l", LINKS), ("r", self.rest)):
                outside, inside = f"{self.prefix}{kind}{number}", f"net{kind}"
                self._make(
                    stack, ["link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name],
                    ["link", "del", outside],
                )  # fmt: skip
                ip("link", "set", "dev", outside, "master", self._bridge(kind), "up")
                ip("-n", name, "addr", "add", f"{network}.{number}/24", "dev", inside)
                ip("-n", name, "link", "set", "dev", inside, "up")

    def _make(self, stack: contextlib.ExitStack, make: list[str], unmake: list[str]) -> None:
        ip(*make)
        stack.callback(subprocess.run, ["ip", *unmake], check=False)

    def _bridge(self, kind: str) -> str:
        return f"{self.prefix}{kind}"

    def name(self, number: int) -> str:
        """A namespace's name for `ip netns`."""
        return f"{self.prefix}n{number}"

    def links(self, number: int) -> str:
        """Its address on the network for links."""
        return f"{LINKS}.{number}"

    def inside(self, number: int) -> tuple[str, ...]:
        """The command that runs another one in it."""
        return ("ip", "netns", "exec", self.name(number))

    def cut(self, number: int) -> None:
        """Nothing comes or goes on the network for links any more."""
        ip("link", "set", "dev", f"{self.prefix}l{number}", "down")

    def heal(self, number: int) -> None:
        """It is connected again."""
        ip("link", "set", "dev", f"{self.prefix}l{number}", "up")

    def second_host(self) -> str:
        """Another address of the machine itself, beside `host`."""
        address = f"{self.rest}.253"
        ip("addr", "add", f"{address}/24", "dev", self._bridge("r"))
        return address

    def swallow(self, number: int, address: str) -> None:
        """Lose all packets to this address: its hardware address is wrong."""
        where = ("dev", "netr", "lladdr", "02:00:00:00:00:01", "nud", "permanent")
        ip("-n", self.name(number), "neigh", "replace", address, *where)

    def deliver(self, number: int, address: str) -> None:
        """Let its packets to this address arrive again."""
        ip("-n", self.name(number), "neigh", "del", address, "dev", "netr")


@contextlib.contextmanager
def forwarding(host: str, there: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """An address on `host` whose connections are handed on to a server elsewhere."""
    with socket.create_server((host, 0)) as listener, contextlib.ExitStack() as connections:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    here = connections.enter_context(listener.accept()[0])
                    away = connections.enter_context(socket.create_connection(there))
                    for source, target in ((here, away), (away, here)):
                        threading.Thread(target=carry, args=(source, target), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def carry(source: socket.socket, target: socket.socket) -> None:
    """Hand on what comes, and its end."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
