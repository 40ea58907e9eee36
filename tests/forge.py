"""Python programs that begin at once: forked from a process that has imported already what they need.

`manage.py runwire` takes half a second of a processor to import what it needs, a web server a whole one, and tests
start hundreds. So one process for each of pytest imports all that needs no settings (`python -m tests.forge FD`). Each
program is a child of it, with the environment, the directory and the pipes that it is given, and is run as `python`
runs it; but that it leaves its memory to the system when it ends. They end with it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final, NoReturn

from brokersite.environment import CHECKOUT
from tests.waiting import PATIENCE

#: Bytes of a request, at most.
LARGEST: Final = 131_072

#: Modules that are imported once. A reactor of Twisted's is not among it: it cannot be forked.
IMPORTED: Final = (
    "psycopg", "django.contrib.admin", "django.core.management", "django.core.asgi",
    "django.db.backends.postgresql.base", "django.test", "queues.engine", "wire.net.processes", "wire.blipmq.session",
    "wire.sspq.session", "wire.status", "hydra.driver", "hydra.irc.connection", "peers.server.consumer",
    "peers.service", "channels.generic.websocket", "celery.result", "twisted.internet.asyncioreactor",
    "twisted.web.server", "autobahn.twisted.websocket", "uvicorn", "whitenoise.middleware",
    "celery.bin.celery", "celery.apps.worker", "celery.worker.consumer", "celery.concurrency.prefork",
    "queues.celery.consumers.engine_thread", "queues.celery.transport.transport", "queues.celery.beat",
    "django.contrib.admin.templatetags.admin_list", "django.contrib.admin.templatetags.admin_modify",
    "django.contrib.admin.views.main", "django.contrib.auth.hashers", "django.contrib.auth.management",
    "django.contrib.auth.password_validation", "django.contrib.auth.tokens", "django.contrib.messages.middleware",
    "django.contrib.postgres.fields", "django.contrib.postgres.forms", "django.contrib.postgres.search",
    "django.contrib.sessions.backends.db", "django.contrib.sessions.middleware", "django.contrib.sites.shortcuts",
    "django.contrib.staticfiles.checks", "django.core.cache.backends.locmem", "django.core.management.commands.migrate",
    "django.middleware.clickjacking", "django.middleware.common", "django.middleware.security",
    "django.templatetags.cache", "django.templatetags.l10n", "django.templatetags.tz", "django.views.csrf",
    "django.views.defaults", "django_celery_results.managers", "channels.routing", "cronsim", "brokersite.checks",
    "brokersite.csp", "brokersite.embedded", "brokersite.health", "brokersite.invalid_values", "brokersite.logs",
    "brokersite.workers", "hydra.metrics", "hydra.picture", "hydra.send_gate", "hydra.storage.node_row",
    "peers.gateway", "peers.metrics", "peers.server.lifespan", "peers.session", "queues.audit.anchor_check",
    "queues.audit.reading", "queues.audit.signing", "queues.checks", "queues.control_room", "queues.etl.runner",
    "queues.operations.verifications", "queues.processes.processors", "queues.store.samples", "wire.checks",
    "wire.net.tls", "wire.overhop.payloads",
)  # fmt: skip


class ForkedProcess:
    """A forked process, as `subprocess.Popen` shows one."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
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
            with contextlib.suppress(ProcessLookupError):  # it has, and the forge is about to say so
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class Forge:
    """The process that forks, and its children."""

    def __init__(self) -> None:
        self._children: dict[int, ForkedProcess] = {}
        self._known = threading.Condition()
        self._forking = threading.Lock()
        self._forked: list[int] = []
        #: Forks that nobody waits for any more: how many are still to come, and those that have.
        self._late = 0
        self._unwanted: set[int] = set()
        self._requests, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forge", str(there.fileno())], cwd=CHECKOUT, pass_fds=[there.fileno()]
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def fork(
        self, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], stderr: int | None, *, leads: bool
    ) -> ForkedProcess:
        """Run `python` with these arguments: a file's, or -m and a module's, perhaps after -W and an action. Without
        `stderr` that is merged into the output. One that `leads` has a session of its own."""
        given, stdin = os.pipe()
        stdout, written = os.pipe()
        request = {"arguments": list(arguments), "cwd": str(cwd), "environment": dict(environment), "leads": leads}
        with self._forking:
            try:
                fds = [given, written, written if stderr is None else stderr]
                socket.send_fds(self._requests, [json.dumps(request).encode()], fds)
            finally:
                os.close(given)
                os.close(written)
            with self._known:
                if not self._known.wait_for(lambda: self._forked, PATIENCE):
                    self._late += 1
                    os.close(stdin)
                    os.close(stdout)
                    raise AssertionError("the forge does not answer")
                pid = self._forked.pop()
                child = ForkedProcess(pid, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))
                self._children[pid] = child
                self._known.notify_all()
        return child

    def _read(self) -> None:
        while message := self._requests.recv(LARGEST):
            answer: dict[str, int] = json.loads(message)
            pid = answer["pid"]
            with self._known:
                if "status" not in answer:
                    if self._late:
                        self._late -= 1
                        self._unwanted.add(pid)
                        os.kill(pid, signal.SIGKILL)
                    else:
                        self._forked.append(pid)
                        self._known.notify_all()
                    continue
                if pid in self._unwanted:
                    self._unwanted.remove(pid)
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


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request, and tell what becomes of the children, until the other side is gone. In each child this
    function returns its request."""
    children: set[int] = set()

    def reap(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                children.discard(ended[0])
                status = os.waitstatus_to_exitcode(ended[1])
                requests.send(json.dumps({"pid": ended[0], "status": status}).encode())

    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which then ends all
    signal.signal(signal.SIGCHLD, reap)
    while True:
        message, fds, _, _ = socket.recv_fds(requests, LARGEST, 3)
        if not message:
            break
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        if not (pid := os.fork()):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, interrupt)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
                os.close(fd)
            return json.loads(message)  # type: ignore[no-any-return]
        for fd in fds:
            os.close(fd)
        children.add(pid)
        requests.send(json.dumps({"pid": pid}).encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    return None


def become(request: dict[str, Any]) -> None:
    """Be the program that is asked for."""
    if request["leads"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    first, *others = request["arguments"]
    if first == "-W":
        warnings.simplefilter(others[0])
        first, *others = others[1:]
    if first == "-m":
        sys.argv = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *others]
        runpy.run_path(first, run_name="__main__")


def leave(status: int) -> NoReturn:
    """End as Python does, but without taking apart all that was imported, which costs as much as it took to begin."""
    threading._shutdown()  # type: ignore[attr-defined]  # joins threads, as multiprocessing does in its children
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def run(request: dict[str, Any]) -> int:
    """Be the program that is asked for; its exit status."""
    try:
        become(request)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
        return 1
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def main() -> None:
    """Import, then serve; in a child, be a program."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that children share the memory
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        request = serve(requests)
    if request is not None:
        leave(run(request))


if __name__ == "__main__":
    main()
