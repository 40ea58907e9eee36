"""Lines: what is read, what is written, what is refused."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydra.protocol.codec import IgnoredLine, LineDecoder, MessageTooLong, bare, encode, join_tag, parse, split_tag
from hydra.protocol.electorate import Electorate
from hydra.protocol.messages import (
    Ask,
    Call,
    Drop,
    Elect,
    Hello,
    Knock,
    Meet,
    Message,
    Nominate,
    Ping,
    Pledge,
    Pong,
    Recv,
    Send,
    Welcome,
)

A, B = "00000000000000aa", "00000000000000bb"
LINES: list[tuple[str, Message]] = [
    ("PING 3 3.1 4294967295", Ping(3, "3.1", 4294967295)),
    ("PONG 3.1 7 2", Pong("3.1", 7, 2)),
    ("PONG 3.1 7 0 two  words ", Pong("3.1", 7, 0, "two  words ")),
    ("RECV 0 :x!y@z PRIVMSG #c :a  b ", Recv(0, ":x!y@z PRIVMSG #c :a  b ")),
    ("SEND 7 PRIVMSG #c :é", Send(7, "PRIVMSG #c :é")),
    ("DROP 7", Drop(7)),
    ("DROP 7 no PONG", Drop(7, "no PONG")),
    ("NOMINATE 2 777", Nominate(2, 777)),
    ("PLEDGE 2 777 1045618677", Pledge(2, 777, 1045618677)),
    ("CALL 2", Call(2)),
    ("ELECT 2 777 1045618677", Elect(2, 777, 1045618677)),
    ("KNOCK 12345", Knock(12345)),
    ("KNOCK 12345 probe", Knock(12345, "probe")),
    ("MEET 12345 1804289383", Meet(12345, 1804289383)),
    ("WELCOME 12345", Welcome(12345)),
    ("HELLO 12345 1804289383", Hello(12345, 1804289383)),
    ("ASK 3 9", Ask(3, 9)),
]
WITH_ATTRIBUTES: list[tuple[str, Message]] = [
    (
        f"@voter={A};next=4;electorate=3.5:{A},{B};leave={A}{B} PING 3 3.1 7",
        Ping(3, "3.1", 7, A, 4, Electorate(3, 5, frozenset({A, B})), A + B),
    ),
    (f"@voter={A};stamp=3.5 PONG 3.1 7 0 n", Pong("3.1", 7, 0, "n", A, (3, 5))),
    (f"@voter={A};stamp=3.5;irc=1 PONG 3.1 7 0 n", Pong("3.1", 7, 0, "n", A, (3, 5), 1)),
    ("@term=3;first=2 RECV 2 JOIN #c", Recv(2, "JOIN #c", 3, 2)),
    ("@term=3;message=m/1 SEND 7 JOIN #c", Send(7, "JOIN #c", 3, "m/1")),
    (f"@voter={A};electorate=3.5:{A} NOMINATE 4 7", Nominate(4, 7, A, Electorate(3, 5, frozenset({A})))),
    (f"@proof={A}{B} DROP 7 the leader leaves", Drop(7, "the leader leaves", A + B)),
    (f"@voter={A} PLEDGE 4 7 8", Pledge(4, 7, 8, A)),
    (f"@voter={A} ELECT 4 7 8", Elect(4, 7, 8, A)),
    (f"@voter={A} MEET 7 8", Meet(7, 8, A)),
    (f"@voter={A} HELLO 7 8", Hello(7, 8, A)),
]


@pytest.mark.parametrize(("line", "message"), LINES + WITH_ATTRIBUTES, ids=lambda each: str(each)[:40])
def test_a_line_is_its_message_and_the_message_is_the_line(line: str, message: Message) -> None:
    assert parse(line) == message
    assert encode(message, attributes=True) == line.encode() + b"\r\n"


@pytest.mark.parametrize(("line", "message"), WITH_ATTRIBUTES, ids=lambda each: str(each)[:40])
def test_without_attributes_a_message_is_the_documents(line: str, message: Message) -> None:
    plain = line.partition(" ")[2]
    assert encode(message, attributes=False) == plain.encode() + b"\r\n"
    assert bare(message) == parse(plain)


def test_all_commands_are_covered() -> None:
    assert {type(message) for _, message in LINES} == set(Message.__args__)
    with_attributes = {kind for kind in Message.__args__ if any(each is None for each in kind._field_defaults.values())}
    assert {type(message) for _, message in WITH_ATTRIBUTES} == with_attributes


@pytest.mark.parametrize(
    "line",
    [
        "", " ", "PING", "PING 3 3.1", "PING 3  7", "PING 3 a b 7", "PING x 3.1 7", "PING -1 a 7",
        "PING 3 a 4294967296",
        "PING 9223372036854775808 a 7", "PING ٣ a 7", "PING +3 a 7", "PING 3 a 7 ", "RECV 0", "RECV 0 ", "RECV x JOIN",
        "SEND 7", "CALL", "CALL 1 2", "KNOCK", "KNOCK x", "DROP", "MEET 1", "HELLO 1 2 3", "ping 3 a 7",
        "HTTP/1.1 200 OK",
        "@voter=xyz PING 3 a 7", "@electorate=3.5: NOMINATE 4 7", "@stamp=3 PONG a 7 0", "@term= SEND 7 JOIN #c",
        "@message=a;term=x SEND 7 JOIN #c", "@voter=00000000000000aa", "\0", "🐍 1",
    ],
)  # fmt: skip
def test_unknown_messages_are_ignored(line: str) -> None:
    with pytest.raises(IgnoredLine):
        parse(line)


def test_unknown_commands_are_told_from_malformed_ones() -> None:
    with pytest.raises(IgnoredLine, match="unknown command 'JUMP'"):
        parse("JUMP 1")
    with pytest.raises(IgnoredLine, match="'x' is no number"):
        parse("CALL x")


def test_unknown_attributes_are_skipped() -> None:
    assert parse("@shoe=42;voter=00000000000000aa;x PLEDGE 4 7 8") == Pledge(4, 7, 8, A)


@given(st.text())
def test_any_text_is_a_message_or_ignored(text: str) -> None:
    with suppress(IgnoredLine):
        assert isinstance(parse(text), tuple)


def test_a_message_that_would_be_too_long_is_not_written() -> None:
    fits = Recv(0, "x" * (2048 - len("RECV 0 ")))
    assert len(encode(fits, attributes=True)) == 2050
    with pytest.raises(MessageTooLong, match="RECV would have 2049 bytes"):
        encode(Recv(0, fits.line + "x"), attributes=True)


def test_the_largest_electorate_fits_into_a_heartbeat() -> None:
    voters = frozenset(f"{number:016x}" for number in range(99))
    largest = 2**63 - 1
    message = Ping(largest, f"{largest}.{largest}", 2**32 - 1, A, largest, Electorate(largest, largest, voters))
    assert parse(encode(message, attributes=True).decode().strip()) == message


@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=30)),
    data=st.data(),
)
def test_lines_come_out_as_they_went_in_however_the_stream_is_cut(lines: list[str], data: st.DataObject) -> None:
    stream = b"".join(line.encode() + data.draw(st.sampled_from([b"\r\n", b"\n"])) for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    decoder = LineDecoder()
    pieces = [stream[begin:end] for begin, end in pairwise([0, *cuts, len(stream)])]
    assert [line for piece in pieces for line in decoder.feed(piece)] == [line for line in lines if line]
    assert decoder.error is None


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_line_may_have_2048_bytes_and_no_more(end: bytes) -> None:
    decoder = LineDecoder()
    assert decoder.feed(b"x" * 2048 + end) == ["x" * 2048]
    assert decoder.feed(b"y\n" + b"x" * 2049 + end + b"z\n") == ["y"]
    assert decoder.error == "a line has more than 2048 bytes"
    assert decoder.feed(b"z\n") == []


def test_a_line_without_end_is_not_waited_for() -> None:
    decoder = LineDecoder()
    for _ in range(2048):
        assert decoder.feed(b"x") == []
    assert (decoder.error, decoder.feed(b"x")) == (None, [])
    assert decoder.error == "a line has more than 2048 bytes"


def test_invalid_utf_8_ends_the_stream() -> None:
    decoder = LineDecoder()
    assert decoder.feed(b"CALL 1\nCALL \xff\nCALL 2\n") == ["CALL 1"]
    assert decoder.error == "a line is not UTF-8"


def test_a_tag_may_end_in_a_lasting_key() -> None:
    assert split_tag(join_tag("al@pha", A)) == ("al@pha", A)
    assert split_tag("probe") == ("probe", None)
    assert split_tag("me@example.org") == ("me@example.org", None)
    assert split_tag("") == ("", None)
