"""Programs as child processes of tests: the one wrapper, which reads what they print, signals them and ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any, ClassVar, Final, Protocol, Self

import psutil

from brokersite.environment import CHECKOUT
from tests.forge import Forge
from tests.waiting import PATIENCE

#: Beginnings of commands that run this project's code, for which the forge has imported most.
PROJECT: Final = ([sys.executable, "manage.py"], [sys.executable, "-m"], [sys.executable, "-W"])


def _for_python(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python reads when it starts, which a forked process has behind it."""
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


@cache
def _forge() -> Forge:
    """The forge of this process, made when the first program starts."""
    return Forge()


def stop_forge() -> None:
    """End the forge of this process, if there is one."""
    if _forge.cache_info().currsize:
        _forge().stop()
        _forge.cache_clear()


class PopenLike(Protocol):
    """The part of `subprocess.Popen` that is used."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    @property
    def returncode(self) -> Any: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


class Process:
    """A running program.

    Its standard output is in `lines`, read by a thread; its standard error is in `log`, at any time. As a context it
    is ready inside, and has ended behind it.
    """

    #: Processes that have not been waited for: when a test fails, their logs are shown beside it.
    RUNNING: ClassVar[set[Process]] = set()
    #: Seconds for the next line, for getting ready, and for the end.
    patience: ClassVar[float] = PATIENCE

    def __init__(
        self,
        *command: str,
        cwd: Path = CHECKOUT,
        environment: Mapping[str, Any] | None = None,
        bare: bool = False,
        merged: bool = False,
        group: bool = False,
    ) -> None:
        """Start it. `environment` overrides variables, None removes one; of a `bare` process they are all it has.

        `merged`: standard error is in `lines` too. `group`: it leads a process group, of which none outlives it.
        """
        self.lines: list[str] = []
        self._taken = 0
        self._merged = merged
        self._group = group
        self._complete = False
        self._news = threading.Condition()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `_close`
        self._log = ""
        variables: dict[str, Any] = {**({} if bare else os.environ), **(environment or {})}
        given = {name: str(value) for name, value in variables.items() if value is not None}
        self.process = self._launch(list(command), cwd, given)
        self.RUNNING.add(self)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _launch(self, command: list[str], cwd: Path, environment: dict[str, str]) -> PopenLike:
        if command[:2] in PROJECT and cwd == CHECKOUT and _for_python(environment) == _for_python(os.environ):
            stderr = None if self._merged else self._stderr.fileno()
            return _forge().fork(command[1:], cwd, environment, stderr, leads=self._group)
        return subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if self._merged else self._stderr, start_new_session=self._group,
        )  # fmt: skip

    def _read(self) -> None:
        assert self.process.stdout is not None
        for data in self.process.stdout:
            line = os.fsdecode(data.removesuffix(b"\n"))
            with self._news:
                self.lines.append(line)
                self.note(line)
                self._news.notify_all()
        with self._news:
            self._complete = True
            self._news.notify_all()

    def note(self, line: str) -> None:
        """Note a line, for subclasses; called by the reading thread."""

    @property
    def log(self) -> str:
        """Its standard error; if that is merged, all of its output."""
        if self._merged:
            return "".join(f"{line}\n" for line in self.lines)
        if self._stderr.closed:
            return self._log
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), size, 0).decode(errors="replace")

    @property
    def ready(self) -> bool:
        """Whether it has said that it is ready."""
        return "ready" in self.lines

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    @property
    def rss(self) -> int:
        """Bytes of memory that it has in use."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def family(self) -> list[psutil.Process]:
        """Its children, and theirs."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_ready(self) -> Self:
        """Wait until it is ready. Raises AssertionError, after its end, with all that it has said."""
        with self._news:
            self._news.wait_for(lambda: self.ready or self._complete, self.patience)
        if not self.ready:
            self.stop(signal.SIGKILL)
            raise AssertionError(f"not ready: {self.lines} {self.log}")
        return self

    def next_line(self) -> str:
        """Wait for the next line that was not taken. Raises AssertionError when there is none any more."""
        with self._news:
            self._news.wait_for(lambda: len(self.lines) > self._taken or self._complete, self.patience)
            assert len(self.lines) > self._taken, f"no further line: {self.lines} {self.log}"
            self._taken += 1
            return self.lines[self._taken - 1]

    def read_until(self, words: str) -> str:
        """Take lines up to one with these words; that line."""
        while words not in (line := self.next_line()):
            pass
        return line

    def tell(self, data: bytes) -> None:
        """Write to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        self.process.send_signal(number)

    def freeze(self) -> None:
        """Stop it in the middle of its work."""
        self.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash does."""
        assert self.stop(signal.SIGKILL) == -signal.SIGKILL, self.log

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, unless it has ended, and wait for the end; the exit status."""
        if self.alive:
            self.send_signal(number)
        return self.wait()

    def finish(self) -> tuple[int, list[str], str]:
        """Close its standard input and wait for the end: the exit status, the lines not taken, standard error."""
        self._close_stdin()
        status = self.wait()
        return status, self.lines[self._taken :], self.log

    def end(self) -> None:
        """End it in any state, by force."""
        if self.alive:
            self.send_signal(signal.SIGKILL)  # also ends one that is frozen
        self.wait()

    def wait(self) -> int:
        """Wait for the end; the exit status. One that does not end is killed: subprocess.TimeoutExpired."""
        try:
            return self.process.wait(self.patience)
        finally:
            self._close()

    def _close(self) -> None:
        if self not in self.RUNNING:
            return
        self.process.kill()
        if self._group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        self._close_stdin()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log = self.log
        self._stderr.close()
        self.RUNNING.discard(self)

    def _close_stdin(self) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def __enter__(self) -> Self:
        return self.wait_ready()

    def __exit__(self, *error: object) -> None:
        """End it; beside an error, show its log."""
        self.stop()
        if error[0] is not None:
            sys.stderr.write(self.log)


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more; a zombie does not, whichever process has to reap it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # between the two looks
        return True
