"""The processes of one `runwire --processes N`, as one of them sees them: which of them serves a name, and connections
that are handed over to it.

The kernel deals new connections out by chance. Messages are fastest where those who publish them and those who consume
them are in one process, so each name (a topic, a queue) has one process that serves it, its owner, which follows from
the name alone. When a client first says which name it uses, and another process is that one's owner, the session there
goes on with the connection. It stays where it is when the other process is not there, does not answer at once or has
no room for it; nothing but speed depends on where a connection is.

Each process has a datagram socket in a directory that only their user may enter. Handing over goes in three steps:

1. An offer is sent to the other process: the listener and the session's state as JSON, with two descriptors, the
   client's socket and one end of a pair of sockets.
2. That process counts the connection in, within its limits, and answers by a byte over the pair; else it closes its
   end.
3. All bytes that the client has sent and that are not handled yet follow, behind their number, and the connection is
   the other process's. Until all of them are there it is this one's: who of the two dies before, or takes too long,
   leaves the connection to the other one, and no byte is handled twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import struct
import zlib
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from wire.net.tasks import Tasks

logger = logging.getLogger(__name__)

#: Seconds that a process waits for each step of the other one: as long as a node may be silent.
TIMEOUT: Final = 10.0
#: Bytes of an offer, at most.
MAX_OFFER: Final = 128 << 10
#: Offers that are taken in one turn of the event loop.
TURN: Final = 16
#: The answer to an offer that is taken.
TAKEN: Final = b"\1"

_size = struct.Struct("!Q")

#: What a session needs to go on in another process: values that JSON has.
State = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a process among those of one `runwire`: its number from 0 on, of how many, and the directory of
    their sockets."""

    directory: Path
    number: int
    count: int

    def socket(self, number: int) -> str:
        """The path of a process's socket."""
        return str(self.directory / str(number))

    def owner(self, kind: str, name: bytes) -> int:
        """The number of the process that serves a name; `kind` is "topic" or "queue"."""
        return zlib.crc32(b"%s:%s" % (kind.encode(), name)) % self.count


class Reservation(NamedTuple):
    """A connection that has been offered and is counted in: one of the two is to be called."""

    #: Go on with it, with these bytes, which the client has sent and which are not handled yet.
    begin: Callable[[State, bytes], None]
    #: It stays where it is.
    cancel: Callable[[], None]


#: Counts a client's socket in for the listener of this name; None if there is none, or no room.
Reserve = Callable[[str, socket.socket, State], Reservation | None]


class ProcessGroup:
    """Hands connections over to other processes of one `runwire`, and takes theirs."""

    def __init__(self, place: Place, reserve: Reserve) -> None:
        self._place = place
        self._reserve = reserve
        self._socket: socket.socket | None = None
        self._tasks = Tasks()
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Take connections from now on. Where that is not possible, since the directory's path is too long for a
        socket, a warning says so, and connections stay where they are."""
        path = self._place.socket(self._place.number)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            self._place.directory.mkdir(0o700, exist_ok=True)
            Path(path).unlink(missing_ok=True)  # of the process of this number before
            sock.bind(path)
        except OSError as error:
            sock.close()
            logger.warning("connections stay in the process that they come to: no socket at %s: %s", path, error)
            return
        self._socket = sock
        self._loop.add_reader(sock, self._receive)

    def stop(self) -> None:
        """Take and hand over nothing more."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            with contextlib.suppress(OSError):
                Path(self._place.socket(self._place.number)).unlink()
                self._place.directory.rmdir()  # the last one; the parent does that too, unless it was killed
        self._tasks.cancel()

    def other_owner(self, kind: str, name: bytes) -> int | None:
        """The number of the process that serves a name; None when it is this one, or connections stay here."""
        owner = self._place.owner(kind, name)
        return None if owner == self._place.number or self._socket is None else owner

    # Handing over.

    async def give(self, number: int, client: int, listener: str, state: State, unread: Callable[[], bytes]) -> bool:
        """Hand a connection over to the process of this number; False if it stays here.

        `client` is the descriptor of its socket. `unread` is called when the other process has room for it: the bytes
        that are not handled yet; nothing may be read any more.
        """
        offer = json.dumps({"listener": listener, "state": state}).encode()
        here, there = socket.socketpair()
        with here:
            here.setblocking(False)
            with there:
                if self._socket is None or not self._offer(number, offer, [client, there.fileno()]):
                    return False
            try:
                async with asyncio.timeout(TIMEOUT):
                    if await self._loop.sock_recv(here, len(TAKEN)) != TAKEN:
                        return False
                    data = unread()
                    await self._loop.sock_sendall(here, _size.pack(len(data)) + data)
            except (OSError, TimeoutError):
                return False
        return True

    def _offer(self, number: int, offer: bytes, descriptors: list[int]) -> bool:
        """Send an offer; False if it does not arrive."""
        assert self._socket is not None
        try:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))
            self._socket.sendmsg([offer], [rights], 0, self._place.socket(number))
        except OSError:  # the process is not there, is busy, or the state is too large
            return False
        return True

    # Taking.

    def _receive(self) -> None:
        """Offers have come."""
        for _ in range(TURN):
            if self._socket is None:
                return
            try:
                data, descriptors, flags, _ = socket.recv_fds(self._socket, MAX_OFFER, 2)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                logger.error("a connection could not be taken over: %s", error)
                return
            sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
            if len(sockets) != 2 or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                for sock in sockets:
                    sock.close()
                continue
            self._tasks.spawn(self._take(data, *sockets))

    async def _take(self, offer: bytes, client: socket.socket, giver: socket.socket) -> None:
        """Take a connection, if there is room for it."""
        with giver:
            giver.setblocking(False)
            words = json.loads(offer)
            reserved = self._reserve(words["listener"], client, words["state"])
            if reserved is None:
                client.close()
                return
            try:
                async with asyncio.timeout(TIMEOUT):
                    await self._loop.sock_sendall(giver, TAKEN)
                    (size,) = _size.unpack(await self._read(giver, _size.size))
                    unread = await self._read(giver, size)
            except (OSError, TimeoutError, EOFError):
                reserved.cancel()  # it stays where it is
            except BaseException:
                reserved.cancel()
                raise
            else:
                reserved.begin(words["state"], unread)

    async def _read(self, sock: socket.socket, size: int) -> bytes:
        """So many bytes. Raises EOFError at an earlier end."""
        data = bytearray()
        while len(data) < size:
            part = await self._loop.sock_recv(sock, min(size - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)
