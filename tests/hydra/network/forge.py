"""Processes that begin at once: forked from one that has imported everything already.

`manage.py runhydra` takes a second of a core to import what it needs. Tests that start nodes dozens of times have it
done once for all nodes with the same environment, by `python -m tests.hydra.network.forge FD`; each node is a child of
that process, with pipes of its own, and otherwise what `manage.py` would have made it. They end with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from types import FrameType
from typing import IO, Any, Final

from brokersite.environment import CHECKOUT
from tests.waiting import PATIENCE

LARGEST: Final = 65536
"""Bytes of a request, at most."""


class ForkedProcess:
    """A forked process, as `subprocess.Popen` shows one."""

    def __init__(self, pid: int, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = None
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = threading.Event()

    def ended(self, status: int) -> None:
        """It has ended. For the forge to call."""
        self.returncode = status
        self._ended.set()

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired."""
        if not self._ended.wait(timeout) or self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class Forge:
    """The process that forks, and its children."""

    def __init__(self, environment: dict[str, Any]) -> None:
        self._children: dict[int, ForkedProcess] = {}
        self._known = threading.Condition()
        self._forked: list[int] = []
        self._requests, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.hydra.network.forge", str(there.fileno())],
                cwd=CHECKOUT, env=os.environ | {name: str(value) for name, value in environment.items()},
                pass_fds=[there.fileno()],
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def fork(self, arguments: list[str], stderr: int) -> ForkedProcess:
        """Run `manage.py` with these arguments."""
        read, write = os.pipe()
        try:
            socket.send_fds(self._requests, [json.dumps(arguments).encode()], [write, stderr])
        finally:
            os.close(write)
        with self._known:
            if not self._known.wait_for(lambda: self._forked, PATIENCE):
                raise AssertionError("the forge does not answer")
            pid = self._forked.pop()
            child = self._children[pid] = ForkedProcess(pid, os.fdopen(read, "rb"))
            self._known.notify_all()
        return child

    def _read(self) -> None:
        while message := self._requests.recv(LARGEST):
            answer: dict[str, int] = json.loads(message)
            pid = answer["pid"]
            with self._known:
                if "status" not in answer:
                    self._forked.append(pid)
                    self._known.notify_all()
                    continue
                self._known.wait_for(lambda pid=pid: pid in self._children)  # type: ignore[misc]
                self._children.pop(pid).ended(answer["status"])

    def stop(self) -> None:
        """End it, and all children that are left."""
        self._requests.shutdown(socket.SHUT_WR)
        self._process.wait(PATIENCE)
        self._reader.join()
        self._requests.close()


# The other side.


def serve(requests: socket.socket) -> None:
    """Fork for each request, and tell what becomes of the children, until the other side is gone."""
    children: set[int] = set()

    def reap(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                children.discard(ended[0])
                status = os.waitstatus_to_exitcode(ended[1])
                requests.send(json.dumps({"pid": ended[0], "status": status}).encode())

    signal.signal(signal.SIGCHLD, reap)
    while True:
        message, fds, _, _ = socket.recv_fds(requests, LARGEST, 2)
        if not message:
            break
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if not pid:
            _become(json.loads(message), requests, *fds)
        for fd in fds:
            os.close(fd)
        children.add(pid)
        requests.send(json.dumps({"pid": pid}).encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _become(arguments: list[str], requests: socket.socket, stdout: int, stderr: int) -> None:
    """Be `manage.py` in this process, and end."""
    from django.core.management import execute_from_command_line

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    requests.close()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    code: Any = 1
    try:
        execute_from_command_line(["manage.py", *arguments])
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Import everything that a node needs, then serve."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "brokersite.settings")
    django.setup()
    import hydra.irc.connection
    import hydra.management.commands.runhydra  # noqa: F401

    with socket.socket(fileno=int(sys.argv[1])) as requests:
        serve(requests)


if __name__ == "__main__":
    main()
