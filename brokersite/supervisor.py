"""Keeps programs running: starts them, waits until they accept, restarts the dead, stops all in order."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from queues.backoff import Backoff, even
from queues.errors import BrokerError
from queues.processes import childprocess
from wire.net.address import HostPort

#: Seconds a program has to accept connections after its first start.
START_TIMEOUT = 60.0
#: Seconds a program has to end after SIGTERM; a listener drains for 10 s by default.
STOP_TIMEOUT = 12.0
#: Waits before a program that died is started again.
RESTART = Backoff(0.5, 30.0, even)
#: A program that has run for this many seconds is well again: its next wait is the first one.
WELL_AFTER = 60.0


class SupervisorError(BrokerError):
    """The programs cannot be started; the message says which and why."""


@dataclass
class Program:
    """A program to keep running: a module or a .py file with its arguments, and where it then listens.

    One that listens nowhere may have `answers`, which returns when it has answered. `ending` is the signal that it ends
    upon in order.
    """

    name: str
    arguments: Sequence[str]
    addresses: Sequence[HostPort] = ()
    answers: Callable[[], Coroutine[None, None, None]] | None = None
    ending: int = signal.SIGTERM
    process: asyncio.subprocess.Process | None = field(default=None, init=False)

    def signal(self, number: int) -> None:
        """Send the program a signal if it runs; SIGKILL goes to its children too."""
        if self.process is None or self.process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)


def refuse_taken(addresses: Sequence[HostPort]) -> None:
    """Raise SupervisorError if one of ``addresses`` cannot be listened on."""
    for address in addresses:
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, place in found:
                with socket.socket(family, kind, protocol) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(place)
        except OSError as error:
            raise SupervisorError(f"{address} cannot be listened on: {error.strerror or error}.") from error


class ProcessSupervisor:
    """Runs ``programs`` from :meth:`start` to :meth:`stop`; ``say`` is given a line when one of them dies."""

    def __init__(self, programs: Sequence[Program], say: Callable[[str], None]) -> None:
        self.programs = programs
        self.say = say
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._ready = False

    async def start(self) -> None:
        """Start every program; return when all accept connections, or answer.

        Raises SupervisorError when one ends before that or takes too long. Call :meth:`stop` all the same.
        """
        self._keepers = [asyncio.create_task(self._keep(program)) for program in self.programs]
        accepting = [asyncio.create_task(_accepts(a)) for program in self.programs for a in program.addresses]
        accepting += [asyncio.create_task(p.answers()) for p in self.programs if p.answers is not None]
        try:
            async with asyncio.timeout(START_TIMEOUT):
                waiting: set[asyncio.Task[None]] = set(accepting)
                while waiting:
                    both = [*waiting, *self._keepers]
                    done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                    for keeper in done - waiting:
                        keeper.result()
                    waiting -= done
        except TimeoutError:
            raise SupervisorError(f"Not everything accepts connections after {START_TIMEOUT:.0f} s.") from None
        finally:
            for task in accepting:
                task.cancel()
        self._ready = True

    async def stop(self) -> None:
        """Stop the programs, last first: their signal, time to drain, then SIGKILL. Returns when none is left."""
        self._stopping.set()
        for program, keeper in reversed(list(zip(self.programs, self._keepers, strict=True))):
            program.signal(program.ending)
            done, _ = await asyncio.wait([keeper], timeout=STOP_TIMEOUT)
            if not done:
                self.say(f"{program.name} does not end after {STOP_TIMEOUT:.0f} s: killed")
                program.signal(signal.SIGKILL)
                await asyncio.wait([keeper])

    def restart(self) -> None:
        """Have every program end and start again."""
        for program in self.programs:
            program.signal(program.ending)

    async def _keep(self, program: Program) -> None:
        """Start the program again and again until everything is to stop."""
        delays = RESTART.delays()
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            begun = loop.time()
            try:
                program.process = await _spawn(program)
            except OSError as error:
                if not self._ready:
                    raise SupervisorError(f"{program.name} cannot be started: {error}") from error
                await self._pause(f"{program.name} cannot be started: {error}; tried again", next(delays))
                continue
            if self._stopping.is_set():  # it was being started while the others were told to end
                program.signal(program.ending)
            code = await program.process.wait()
            if self._stopping.is_set():
                return
            if not self._ready:
                raise SupervisorError(f"{program.name} {_ended(code)} before everything was ready.")
            if loop.time() - begun > WELL_AFTER:
                delays = RESTART.delays()
            await self._pause(f"{program.name} {_ended(code)}: started again", next(delays))

    async def _pause(self, what: str, delay: float) -> None:
        """Say what happens after the delay, and return after it."""
        self.say(f"{what} in {delay:g} s")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay)


async def _spawn(program: Program) -> asyncio.subprocess.Process:
    # A session of its own: a Ctrl-C in the terminal reaches the supervisor alone, which stops all in order.
    return await asyncio.create_subprocess_exec(
        *childprocess.command(*program.arguments),
        stdin=asyncio.subprocess.DEVNULL,
        # A program writes to stderr; the supervisor's owner prints its addresses.
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


async def _accepts(address: HostPort) -> None:
    """Return when something accepts connections at ``address``."""
    while True:
        try:
            _, writer = await asyncio.open_connection(address.host, address.port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            return


def _ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
