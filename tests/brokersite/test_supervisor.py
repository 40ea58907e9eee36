"""Programs are started, started again, and stopped: none is left, whatever happens to them or to us."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from brokersite import supervisor
from brokersite.supervisor import ProcessSupervisor, Program, SupervisorError, refuse_taken
from queues.backoff import Backoff, even
from tests.process import Process, has_ended
from wire.net.address import HostPort

SERVER = """
import signal, socket, sys
{prelude}
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    server.accept()[0].close()
"""


class Said:
    """The lines a supervisor has said, and a way to wait for one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._more = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self._more.set()

    async def wait_for(self, words: str) -> str:
        async with asyncio.timeout(20):
            while True:
                for line in self.lines:
                    if words in line:
                        return line
                self._more.clear()
                await self._more.wait()


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def server(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> Callable[..., Program]:
    """A program that accepts connections; ``prelude`` runs before it does."""

    def make(name: str, prelude: str = "") -> Program:
        port = unused_tcp_port_factory()
        path = tmp_path / f"{name}.py"
        path.write_text(SERVER.format(prelude=prelude))
        return Program(name, [str(path), str(port)], [HostPort("127.0.0.1", port)])

    return make


Run = Callable[..., Awaitable[ProcessSupervisor]]


@pytest.fixture
async def run(said: Said) -> AsyncIterator[Run]:
    """Start programs; whatever happens they are stopped at the end."""
    started: list[ProcessSupervisor] = []

    async def start(*programs: Program) -> ProcessSupervisor:
        started.append(ProcessSupervisor(programs, said))
        await started[-1].start()
        return started[-1]

    yield start
    for each in started:
        await each.stop()


def accepts(program: Program) -> bool:
    address = program.addresses[0]
    with socket.socket() as probe:
        return probe.connect_ex((address.host, address.port)) == 0


def pid(program: Program) -> int:
    assert program.process is not None
    return program.process.pid


async def gone(process: psutil.Process) -> None:
    async with asyncio.timeout(60):
        while not has_ended(process):
            await asyncio.sleep(0.02)


async def test_start_returns_when_everything_accepts(run: Run, server: Callable[..., Program]) -> None:
    programs = [server("one"), server("slow", "import time; time.sleep(0.3)")]
    await run(*programs)
    assert [accepts(program) for program in programs] == [True, True]


async def test_start_waits_for_an_answer_where_nothing_is_listened_on(said: Said, tmp_path: Path) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def answers() -> None:
        asked.set()
        await answer.wait()

    path = tmp_path / "worker.py"
    path.write_text("import signal; signal.pause()")
    worker = Program("worker", [str(path)], answers=answers)
    supervised = ProcessSupervisor([worker], said)
    starting = asyncio.create_task(supervised.start())
    async with asyncio.timeout(20):
        await asked.wait()
        assert not starting.done()
        answer.set()
        await starting
    await supervised.stop()


async def test_a_program_ends_upon_the_signal_that_it_asks_for(run: Run, server: Callable[..., Program]) -> None:
    program = server("one", "signal.signal(signal.SIGQUIT, lambda *_: sys.exit(4))")
    program.ending = signal.SIGQUIT
    running = await run(program)
    await running.stop()
    assert program.process is not None
    assert program.process.returncode == 4


async def test_stop_ends_all_of_them(run: Run, server: Callable[..., Program], said: Said) -> None:
    programs = [server("one"), server("two")]
    running = await run(*programs)
    pids = [pid(program) for program in programs]
    await running.stop()
    assert [psutil.pid_exists(number) for number in pids] == [False, False]
    assert said.lines == []


async def test_the_last_program_is_stopped_first(run: Run, server: Callable[..., Program], tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    note = "signal.signal(signal.SIGTERM, lambda *_: (open({!r}, 'a').write({!r}), sys.exit()))"
    running = await run(*(server(name, note.format(str(journal), name)) for name in ("a", "b", "c")))
    await running.stop()
    assert journal.read_text() == "cba"


async def test_a_program_that_ignores_sigterm_is_killed_with_its_children(
    run: Run, server: Callable[..., Program], said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOP_TIMEOUT", 0.3)
    deaf = server(
        "deaf",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "import subprocess; subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])",
    )
    running = await run(deaf)
    (child,) = psutil.Process(pid(deaf)).children()
    await running.stop()
    await gone(child)
    assert said.lines == ["deaf does not end after 0 s: killed"]


async def test_a_killed_program_is_started_again(run: Run, server: Callable[..., Program], said: Said) -> None:
    program = server("one")
    await run(program)
    first = pid(program)
    os.kill(first, signal.SIGKILL)
    assert await said.wait_for("one") == "one was killed by SIGKILL: started again in 0.5 s"
    async with asyncio.timeout(20):
        while pid(program) == first or not accepts(program):
            await asyncio.sleep(0.05)


async def test_a_program_that_cannot_be_started_again_for_a_moment_is_tried_again(
    run: Run, server: Callable[..., Program], said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RESTART", Backoff(0.01, 30.0, even))
    program = server("one")
    await run(program)
    first, spawn = pid(program), supervisor._spawn

    async def too_many(program: Program) -> asyncio.subprocess.Process:
        monkeypatch.setattr(supervisor, "_spawn", spawn)
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(supervisor, "_spawn", too_many)
    os.kill(first, signal.SIGKILL)
    await said.wait_for("cannot")
    async with asyncio.timeout(60):
        while pid(program) == first or not accepts(program):
            await asyncio.sleep(0.05)
    assert said.lines == [
        "one was killed by SIGKILL: started again in 0.01 s",
        "one cannot be started: Resource temporarily unavailable; tried again in 0.02 s",
    ]


async def test_a_program_that_keeps_dying_waits_longer_each_time(
    run: Run, server: Callable[..., Program], said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RESTART", Backoff(0.01, 30.0, even))
    flag = tmp_path / "broken"
    program = server("one", f"import os.path\nif os.path.exists({str(flag)!r}): sys.exit(7)")
    await run(program)
    flag.touch()
    os.kill(pid(program), signal.SIGKILL)
    await said.wait_for("again in 0.04 s")
    assert said.lines[:3] == [
        "one was killed by SIGKILL: started again in 0.01 s",
        "one ended with code 7: started again in 0.02 s",
        "one ended with code 7: started again in 0.04 s",
    ]


async def test_a_program_that_ends_before_all_is_ready_is_the_end_of_the_start(
    run: Run, server: Callable[..., Program]
) -> None:
    well, broken = server("well"), server("broken", "sys.exit(3)")
    with pytest.raises(SupervisorError, match="broken ended with code 3 before everything was ready"):
        await run(well, broken)


async def test_a_program_that_never_accepts_is_the_end_of_the_start(
    run: Run, server: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "START_TIMEOUT", 0.5)
    with pytest.raises(SupervisorError, match="Not everything accepts connections"):
        await run(server("mute", "signal.pause()"))


def test_a_taken_port_is_named(unused_tcp_port: int) -> None:
    refuse_taken([HostPort("127.0.0.1", unused_tcp_port)])
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SupervisorError, match=rf"127\.0\.0\.1:{port} cannot be listened on: .*in use"):
            refuse_taken([HostPort("127.0.0.1", unused_tcp_port), HostPort("127.0.0.1", port)])


async def test_children_end_when_their_supervisor_is_killed(tmp_path: Path, unused_tcp_port: int) -> None:
    path = tmp_path / "server.py"
    path.write_text(SERVER.format(prelude=""))
    code = f"""
import asyncio
from brokersite.supervisor import *
async def main():
    program = Program("one", [{str(path)!r}, "{unused_tcp_port}"], [HostPort("127.0.0.1", {unused_tcp_port})])
    await ProcessSupervisor([program], print).start()
    print(program.process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    parent = Process(sys.executable, "-c", code)
    child = psutil.Process(int(parent.next_line()))
    parent.kill()
    await gone(child)
