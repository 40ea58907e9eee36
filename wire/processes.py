"""Several listener processes that share their ports: started, watched and stopped by one parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from brokersite import tied

#: Runs a program that ends when its parent does.
TIED = tied.__file__
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: A child that has lived this long starts again without a pause.
LIVED = 10.0


class Child:
    """One process: this same command line with --processes 1."""

    def __init__(self, number: int, say: Callable[[str], None], ready: Callable[[int], None]) -> None:
        self.number = number
        self.pause = FIRST_PAUSE
        self.start_at = 0.0
        self.started = 0.0
        self.process: subprocess.Popen[str] | None = None
        self._say = say
        self._ready = ready

    def start(self) -> None:
        words = [word for word in sys.argv if not word.startswith("--processes=")]
        if "--processes" in words:
            at = words.index("--processes")
            del words[at : at + 2]
        if self.number and any(word.startswith("--status") for word in words):
            words = _without_option(words, "--status")  # one page for all: the first process has it
        command = [sys.executable, TIED, str(os.getpid()), *words, "--share-ports"]
        self.started = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._relay, args=(self.process,), daemon=True).start()

    def _relay(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            text = line.rstrip("\n")
            if text == "ready":
                self._ready(self.number)
            else:
                self._say(f"[{self.number}] {text}")

    def watch(self) -> None:
        """Start again when it has died, after a pause that grows while it keeps dying."""
        now = time.monotonic()
        if self.process is not None and self.process.poll() is not None:
            self._say(f"process {self.number} ended with status {self.process.returncode}; starting it again")
            self.process = None
            self.pause = FIRST_PAUSE if now - self.started > LIVED else min(2 * self.pause, LONGEST_PAUSE)
            self.start_at = now + self.pause
        if self.process is None and now >= self.start_at:
            self.start()


def run_processes(count: int, drain_timeout: float, say: Callable[[str], None]) -> int:
    """Run until SIGTERM or SIGINT, then stop them all; returns the exit status."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    waiting = set(range(count))

    def ready(number: int) -> None:
        if number in waiting:
            waiting.discard(number)
            if not waiting:
                say("ready")

    children = [Child(number, say, ready) for number in range(count)]
    while not stop.is_set():
        for child in children:
            child.watch()
        stop.wait(0.2)
    alive = [child.process for child in children if child.process is not None and child.process.poll() is None]
    for process in alive:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + drain_timeout + 2.0
    for process in alive:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return 0


def _without_option(words: list[str], option: str) -> list[str]:
    """The words without an option and its value."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == option:
            skip = True
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept
