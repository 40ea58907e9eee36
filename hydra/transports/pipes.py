"""Named pipes: made, checked, locked, and written to without waiting."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
from collections.abc import Callable
from typing import Final

from hydra.transports.base import TransportError
from hydra.transports.error_texts import reason

MODE: Final = 0o600
READ_SIZE: Final = 65536
_FLAGS: Final = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_TEXTS: Final = {
    errno.ENXIO: "no process reads it",
    errno.ELOOP: "is a symbolic link",
    errno.ENOENT: "is not there",
}


def make_pipe(path: str) -> bool:
    """Make a pipe that only its owner can use; return False if there is one. Raises TransportError."""
    try:
        os.mkfifo(path, MODE)
    except FileExistsError:
        return False
    except OSError as error:
        raise TransportError(f"{path}: {reason(error)}") from error
    return True


def open_writer(path: str) -> int:
    """Open a pipe for writing. Raises TransportError, also for a pipe without a reader."""
    return _open(path, os.O_WRONLY)


def _open(path: str, way: int) -> int:
    try:
        fd = os.open(path, way | _FLAGS)
    except OSError as error:
        raise TransportError(f"{path}: {_TEXTS.get(error.errno or 0) or reason(error)}") from error
    status = os.fstat(fd)
    if not stat.S_ISFIFO(status.st_mode):
        os.close(fd)
        raise TransportError(f"{path} is no pipe: remove it, or choose another name")
    if status.st_uid not in (os.geteuid(), 0):
        os.close(fd)
        raise TransportError(f"{path} belongs to another user, who could read and write it")
    return fd


class PipeReader:
    """Reads a pipe under a lock, which keeps other nodes from reading it.

    A pipe without a writer has ended, and is reported as readable for ever. So `keep` opens it for writing while there
    is no link.
    """

    def __init__(self, path: str, taken: str) -> None:
        """Raises TransportError, with the text `taken` if another process has it locked."""
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._keeper: int | None = None
        self._fd = _open(path, os.O_RDONLY)
        try:
            self._lock(taken)
            self.keep()
        except BaseException:
            self.close()
            raise

    def start(self, received: Callable[[bytes], None]) -> None:
        """Call `received` with the bytes from now on, and with none when all writers have left."""
        self._loop.add_reader(self._fd, self._readable, received)

    def keep(self) -> None:
        """Keep the pipe from ending. Raises TransportError if it was replaced or removed."""
        if self._keeper is None:
            self._keeper = open_writer(self._path)
        if not os.path.samestat(os.fstat(self._keeper), os.fstat(self._fd)):
            raise TransportError(f"{self._path} has been replaced")

    def release(self) -> None:
        """Let the pipe end with its other writers: there is a link."""
        if self._keeper is not None:
            os.close(self._keeper)
            self._keeper = None

    def close(self) -> None:
        """Close it."""
        self._loop.remove_reader(self._fd)
        self.release()
        os.close(self._fd)

    def _lock(self, taken: str) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TransportError(f"{self._path}: {taken}") from None
        except OSError as error:
            raise TransportError(f"{self._path} cannot be locked: {reason(error)}") from error

    def _readable(self, received: Callable[[bytes], None]) -> None:
        try:
            data = os.read(self._fd, READ_SIZE)
        except BlockingIOError:
            return
        received(data)


class PipeWriter:
    """Writes to a pipe (`hydra.transports.stream.ByteCarrier`). It owns the descriptor."""

    def __init__(self, fd: int, broken: Callable[[], None], closed: Callable[[], None]) -> None:
        """`broken` is called, later, when the pipe has no reader any more; `closed` when this is closed."""
        self._fd = fd
        self._broken = broken
        self._closed = closed
        self._buffer = bytearray()
        self._open = True
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes) -> None:
        """Write as much as the pipe takes, queue the rest."""
        if not self._open:
            return
        if not self._buffer:
            data = data[self._send(data) :]
        if data:
            if not self._buffer:
                self._loop.add_writer(self._fd, self._writable)
            self._buffer += data

    def get_write_buffer_size(self) -> int:
        """Bytes in the queue."""
        return len(self._buffer)

    def close(self) -> None:
        """Close at once."""
        if self._open:
            self._open = False
            self._buffer.clear()
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._closed()

    abort = close

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            self._loop.call_soon(self._report)
            return len(data)

    def _report(self) -> None:
        if self._open:
            self._broken()

    def _writable(self) -> None:
        del self._buffer[: self._send(self._buffer)]
        if not self._buffer:
            self._loop.remove_writer(self._fd)
