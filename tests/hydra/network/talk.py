"""Lines that go both ways all the time while something is done to the nodes, and what has become of them."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Self

from tests.hydra.network.nodes import Network
from tests.hydra.network.people import Person
from tests.waiting import wait_until


class Said(NamedTuple):
    """Something that a person has said."""

    at: float
    text: str


END: Final = 1_000_000
"""The number of the last line."""

_talks = itertools.count(1)


class Talk:
    """A person speaks in the channel and a program publishes lines for it, each numbered, until the block's end."""

    def __init__(
        self, network: Network, person: Person, publish: Callable[[str, str], int], interval: float = 0.1
    ) -> None:
        self.network = network
        self.person = person
        self.said: list[Said] = []
        self.published: dict[str, int] = {}
        """The message of each line."""
        self._name = f"talk {next(_talks)}"
        self._publish = publish
        self._interval = interval
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in (self._speak, self._write)]

    def _run(self, work: Callable[[int], None]) -> None:
        number = 0
        try:
            while not self._over.wait(self._interval):
                work(number)
                number += 1
        except BaseException as error:  # told at the end of the block
            self._error = error
        finally:
            close_connections()

    def _speak(self, number: int) -> None:
        text = f"{self._name}, said {number}"
        self.said.append(Said(self.person.say(text), text))

    def _write(self, number: int) -> None:
        text = f"{self._name}, published {number}"
        self.published[text] = self._publish(self.network.send, f"PRIVMSG {self.network.channel} :{text}")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def listened(self) -> tuple[float, float]:
        """From when to when a leader has certainly listened: since it joined, until something that is said just now."""
        now = time.monotonic()

        def stored() -> list[float]:
            texts = set(self.received())
            return [at for at, text in list(self.said) if at > now and text in texts]

        until: float = wait_until(stored, "something that is said now in the queue")[-1]
        # One that joined before the person was not seen to do so.
        return max((joined for joined, _ in self.person.stays() if joined < until), default=0.0), until

    # Afterwards.

    def settle(self) -> None:
        """Wait until everything has got where it goes: a last line each way."""
        self._write(END)
        last = f"{self._name}, published {END}"
        while last not in (texts := self.person.texts):  # a busy machine has many to catch up on
            more = partial(self._has_more_than, len(texts))
            self.person.wait_for(more, repr(last))
        wait_until(lambda: self.network.waiting() == 0, "the acknowledgement of all lines")
        self._speak(END)
        wait_until(lambda: f"{self._name}, said {END}" in self.received(), "the last line in the queue")

    def _has_more_than(self, count: int) -> bool:
        return len(self.person.texts) > count

    def received(self, term: int | None = None) -> list[str]:
        """The person's texts in the queue: all of them, or those of one term."""
        head = f" PRIVMSG {self.network.channel} "
        texts = [line.partition(head)[2].removeprefix(":") for _, _, line in self.network.received(term)]
        return [text for text in texts if text.startswith(f"{self._name}, said ")]

    def assert_nothing_twice(self) -> None:
        """No line was said or stored twice, none is altered, and the queue has each term's lines in order."""
        spoken, stored = Counter(self.person.texts), Counter(self.received())
        assert not [text for text, times in (spoken + Counter()).items() if times > 1]
        assert not [text for text, times in stored.items() if times > 1]
        assert spoken.keys() <= self.published.keys()
        assert stored.keys() <= {each.text for each in self.said}
        for term in {term for term, _, _ in self.network.received()}:
            indexes = [idx for _, idx, _ in self.network.received(term)]
            assert indexes == list(range(len(indexes))), f"term {term}: {indexes}"
            numbers = [int(text.rpartition(" ")[2]) for text in self.received(term)]
            assert numbers == sorted(numbers)

    def lost_published(self) -> list[str]:
        """Published texts that the person has not received."""
        return [text for text in self.published if text not in set(self.person.texts)]

    def lost_said(self, listened: list[tuple[float, float]]) -> list[str]:
        """Texts said while a node listened that are not in the queue."""
        stored = set(self.received())
        return [
            text
            for at, text in self.said
            if text not in stored and any(since < at < until for since, until in listened)
        ]


def close_connections() -> None:
    """A thread that has used Django's connections is at its end."""
    from django.db import connections

    for each in connections.all(initialized_only=True):
        each.close()
