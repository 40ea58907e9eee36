"""Lines between people on IRC and programs at the queues: as they are, once, in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hydra.irc.server import IrcServerProcess
from tests.hydra.network.nodes import CHANNEL, STEADY, Network
from tests.hydra.network.people import Person
from tests.hydra.network.stores import Publish
from tests.waiting import wait_until
from tests.wire.broker import Database

FULL = 510
"""Bytes of the longest line on IRC, without its end."""

TEXTS = [
    "two  spaces,   three, and    four",
    "  spaces before",
    "spaces after   ",
    "   ",
    ":a colon first, and : another",
    "Grüße, 你好, \N{GRINNING FACE}, e\u0301",
    "\x01ACTION waves\x01",
    "\x02bold\x02 \x0304,08colours\x0f and a\ttab",
    "@voter=0000000000000000 PING 9 9 9",
    "RECV 0 PRIVMSG #hydra :no, not this one",
    "%s {} \\u0041 \\ \\\\ \"quoted\" 'quoted'",
    "\N{NO-BREAK SPACE}not ASCII's space\N{LINE SEPARATOR}nor its end of line\x0b\x0c\x1c\x85",
]


@pytest.fixture(scope="module")
def network(store: Database, irc: IrcServerProcess) -> Iterator[Network]:
    """Three nodes in a row, so that the ends hear each other through the one in the middle."""
    with Network(store, irc, times=STEADY) as network:
        network.linked({"alpha": "", "beta": "alpha", "gamma": "beta"})
        network.wait_in_term(voters=3)
        yield network


def line_of(person: Person, text: str) -> str:
    """The server's line to the others for a person's text."""
    return f":{person.nick}!{person.nick}@{SERVER} PRIVMSG {CHANNEL} :{text}"


SERVER = "localhost"


def filled(head: str, letters: str, size: int = FULL) -> str:
    """A line of exactly so many bytes."""
    text = head + letters * size
    while len(text.encode()) > size:
        text = text[:-1]
    return text + "." * (size - len(text.encode()))


def test_irc_lines_arrive_in_the_queue_unaltered_once_and_in_order(network: Network, person: Person) -> None:
    before = len(network.received())
    own = line_of(person, "")
    texts = [*TEXTS, filled(own, "full").removeprefix(own), filled(own, "üß€").removeprefix(own)]
    for text in texts:
        person.say(text)
    person.say("the end")
    wait_until(lambda: network.received()[-1:] and network.received()[-1][2].endswith(":the end"), "the last line")
    lines = network.received()[before:]
    said = [line for _, _, line in lines if " PRIVMSG " in line]
    assert said == [line_of(person, text) for text in [*texts, "the end"]]
    assert [idx for _, idx, _ in network.received()] == list(range(len(network.received())))


def test_published_lines_are_sent_to_irc_unaltered_once_and_in_order(
    network: Network, person: Person, publish_there: Publish
) -> None:
    head = f"PRIVMSG {CHANNEL} :"
    room = FULL - len(f":{network.nick}!hydra@{SERVER} ")  # what the server adds for the others
    lines = [*(head + text for text in TEXTS), filled(head, "full", room), filled(head, "üß€", room)]
    messages = [publish_there("hydra.send", line) for line in [*lines, f"{head}the end"]]
    person.wait_text("the end")
    assert person.texts == [line.removeprefix(head) for line in [*lines, f"{head}the end"]]
    wait_until(lambda: network.waiting() == 0, "the acknowledgement of all")
    assert network.sent().issuperset(messages)


def test_other_lines_than_messages_pass_both_ways(
    network: Network, irc: IrcServerProcess, person: Person, publish_there: Publish
) -> None:
    before = len(network.received())
    publish_there("hydra.send", f"TOPIC {CHANNEL} :of  the day")
    publish_there("hydra.send", f"NOTICE {CHANNEL} :beware")
    publish_there("hydra.send", f"MODE {CHANNEL} +n")
    person.wait_for(lambda: person.lines("NOTICE") and person.lines("MODE"))
    with Person((irc.host, irc.port), "guest") as guest:
        assert [each.line.partition(" TOPIC ")[2] for each in guest.lines("TOPIC")] == [f"{CHANNEL} :of  the day"]
        guest.send(f"NOTICE {CHANNEL} :well", f"MODE {CHANNEL} +m", f"PART {CHANNEL}", f"JOIN {CHANNEL}")
        guest.send(f"KICK {CHANNEL} {person.nick} :out")
        guest.send(f"JOIN {CHANNEL}", "QUIT :bye now")
        wait_until(lambda: any("bye now" in line for _, _, line in network.received()[before:]), "the last line")
    lines = [line for _, _, line in network.received()[before:]]
    own = ":guest!guest@localhost"
    assert [line for line in lines if line.startswith(own)] == [
        f"{own} JOIN :{CHANNEL}",
        f"{own} NOTICE {CHANNEL} :well",
        f"{own} MODE {CHANNEL} +m",
        f"{own} PART :{CHANNEL}",
        f"{own} JOIN :{CHANNEL}",
        f"{own} KICK {CHANNEL} {person.nick} :out",
        f"{own} JOIN :{CHANNEL}",
        f"{own} QUIT :bye now",
    ]


def test_a_message_that_is_no_irc_line_becomes_a_dead_letter_with_the_reason(
    network: Network, person: Person, publish_there: Publish
) -> None:
    head = f"PRIVMSG {CHANNEL} :"
    two, nul, long = f"{head}a\r\nQUIT :b", f"{head}\0", filled(head, "x") + "x"
    for line in ("", "hello", "QUIT :bye", "NICK other", "JOIN\n#a", two, nul, long):
        publish_there("hydra.send", line)
    publish_there("hydra.send", f"{head}a good one")
    person.wait_text("a good one")
    assert person.texts == ["a good one"]
    wait_until(lambda: network.waiting() == 0, "the burial of the others")
    reasons = network.rows("select error from queues_message where state = 3")
    assert len(reasons) == 8
    assert all("no line for IRC" in reason for (reason,) in reasons)
