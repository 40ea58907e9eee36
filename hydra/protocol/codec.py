"""Hydra's lines (docs/protocols/hydra.md, "Lines on the wire"). No I/O.

    PONG 1.7 12345 0 alpha                                      what the document says
    @voter=5f3c09a1b2c3d4e5;stamp=1.3 PONG 1.7 12345 0 alpha    the same with attributes

`LineDecoder` splits a stream into lines, `parse` reads a line, `encode` writes one. Attributes are written only for
neighbours that know them, as the lasting key at the end of a KNOCK's tag shows (`join_tag`, `split_tag`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from hydra.protocol import messages
from hydra.protocol.electorate import Stamp, parse_electorate
from hydra.protocol.messages import Message

#: Bytes of a line without its end.
MAX_LINE: Final = 2048
MAX_ID: Final = 2**32 - 1
#: The greatest term, index or count.
MAX_NUMBER: Final = 2**63 - 1

_DIGITS: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_VOTER: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_KEYED_TAG: Final = re.compile(r"(.*)@([0-9a-f]{16})", re.ASCII)
_STAMP: Final = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})", re.ASCII)
_WORD: Final = re.compile(r"[!-:<-~]{1,200}", re.ASCII)


class LineTooLong(ValueError):
    """A line is over the limit: the link has to be closed."""


class IgnoredLine(ValueError):
    """The line is no message: its command is unknown, or its fields do not fit. It is skipped."""


class MessageTooLong(ValueError):
    """The message does not fit into a line."""


class LineDecoder:
    """Splits a stream of bytes into lines, without their ends; empty lines are skipped."""

    def __init__(self) -> None:
        #: The beginning of an incomplete line.
        self.pending = b""
        self.error: str | None = None
        """Set when the stream is no text in lines; nothing more is decoded then."""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines completed by `data`; check `error` afterwards."""
        lines: list[str] = []
        if self.error is not None:
            return lines
        *ends, rest = (self.pending + data).split(b"\n")
        try:
            for end in ends:
                if line := _checked(end):
                    lines.append(line.decode())
            _checked(rest)
        except UnicodeDecodeError:
            self.error = "a line is not UTF-8"
        except LineTooLong as error:
            self.error = str(error)
        self.pending = b"" if self.error else rest
        return lines


def _checked(line: bytes) -> bytes:
    line = line.removesuffix(b"\r")
    if len(line) > MAX_LINE:
        raise LineTooLong(f"a line has more than {MAX_LINE} bytes")
    return line


def _number(text: str) -> int:
    if not _DIGITS.fullmatch(text):
        raise IgnoredLine(f"{text!r} is no number")
    number = int(text)
    if number > MAX_NUMBER:
        raise IgnoredLine(f"{text} is too great")
    return number


def _id(text: str) -> int:
    number = _number(text)
    if number > MAX_ID:
        raise IgnoredLine(f"{text} has more than 32 bits")
    return number


def _word(text: str) -> str:
    if not text:
        raise IgnoredLine("an empty field")
    return text


def _matching(pattern: re.Pattern[str], meaning: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not pattern.fullmatch(text):
            raise IgnoredLine(f"{text!r} is no {meaning}")
        return text

    return read


def _stamp(text: str) -> Stamp:
    match = _STAMP.fullmatch(text)
    if match is None:
        raise IgnoredLine(f"{text!r} is no stamp")
    return _number(match[1]), _number(match[2])


def _write_stamp(stamp: Stamp) -> str:
    return f"{stamp[0]}.{stamp[1]}"


class _Form(NamedTuple):
    """The format of a command's fields; the rest runs to the end of the line."""

    make: Callable[..., Message]
    fields: tuple[Callable[[str], Any], ...]
    rest: str = ""
    """The name of the last field if that is a line, a tag or a reason."""
    rest_needed: bool = False
    attributes: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """The number of the specification's fields."""
        return len(self.fields) + bool(self.rest)


_FORMS: Final[dict[str, _Form]] = {
    "PING": _Form(messages.Ping, (_number, _word, _id), attributes=("voter", "next", "electorate", "leave")),
    "PONG": _Form(messages.Pong, (_word, _id, _number), rest="tag", attributes=("voter", "stamp", "irc")),
    "RECV": _Form(messages.Recv, (_number,), rest="line", rest_needed=True, attributes=("term", "first")),
    "SEND": _Form(messages.Send, (_id,), rest="line", rest_needed=True, attributes=("term", "message")),
    "DROP": _Form(messages.Drop, (_id,), rest="reason", attributes=("proof",)),
    "NOMINATE": _Form(messages.Nominate, (_number, _id), attributes=("voter", "electorate")),
    "PLEDGE": _Form(messages.Pledge, (_number, _id, _id), attributes=("voter",)),
    "CALL": _Form(messages.Call, (_number,)),
    "ELECT": _Form(messages.Elect, (_number, _id, _id), attributes=("voter",)),
    "KNOCK": _Form(messages.Knock, (_id,), rest="tag"),
    "MEET": _Form(messages.Meet, (_id, _id), attributes=("voter",)),
    "WELCOME": _Form(messages.Welcome, (_id,)),
    "HELLO": _Form(messages.Hello, (_id, _id), attributes=("voter",)),
    "ASK": _Form(messages.Ask, (_number, _number)),
}
_COMMANDS: Final = {form.make: command for command, form in _FORMS.items()}
_WORDS: Final = tuple(command.encode() for command in _FORMS)

_ATTRIBUTES: Final[dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]]] = {
    "voter": (_matching(_VOTER, "voter's key"), str),
    "next": (_number, str),
    "electorate": (parse_electorate, str),
    "stamp": (_stamp, _write_stamp),
    "irc": (_number, str),
    "term": (_number, str),
    "first": (_number, str),
    "message": (_matching(_WORD, "word"), str),
    "leave": (_matching(_DIGEST, "digest"), str),
    "proof": (_matching(_DIGEST, "digest"), str),
}


def may_begin(data: bytes) -> bool:
    """Whether the beginning of a line can be the beginning of a message."""
    if data.startswith(b"@"):
        return True
    word, space, _ = data.partition(b" ")
    return any(name.startswith(word) and (not space or name == word) for name in _WORDS)


def parse(line: str) -> Message:
    """Read one line. Raises IgnoredLine if it is no message.

    Unknown attributes are skipped, so that later versions can add some.
    """
    attributes = ""
    if line.startswith("@"):
        attributes, _, line = line[1:].partition(" ")
    command, _, rest = line.partition(" ")
    form = _FORMS.get(command)
    if form is None:
        raise IgnoredLine(f"unknown command {command[:20]!r}")
    values = _fields(form, rest)
    return form.make(*values, **_attributes(form, attributes)) if attributes else form.make(*values)


def _fields(form: _Form, text: str) -> list[Any]:
    count = len(form.fields)
    words = text.split(" ", count) if form.rest else text.split(" ")
    if len(words) == count and form.rest and not form.rest_needed:
        words.append("")
    if len(words) != form.width or (form.rest_needed and not words[-1]):
        raise IgnoredLine("a wrong number of fields")
    values = [read(word) for read, word in zip(form.fields, words, strict=False)]
    return [*values, words[-1]] if form.rest else values


def _attributes(form: _Form, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in text.split(";"):
        name, _, value = attribute.partition("=")
        if name in form.attributes:
            try:
                found[name] = _ATTRIBUTES[name][0](value)
            except ValueError as error:
                raise IgnoredLine(f"attribute {name}: {error}") from None
    return found


def encode(message: Message, *, attributes: bool) -> bytes:
    r"""Write one message as a line with its end, `\r\n`. Raises MessageTooLong."""
    command = _COMMANDS[type(message)]
    form = _FORMS[command]
    words = [command, *(str(value) for value in message[: form.width])]
    if form.rest and not words[-1]:
        words.pop()
    if attributes and (given := _given(form, message[form.width :])):
        words.insert(0, f"@{';'.join(given)}")
    line = " ".join(words).encode()
    if len(line) > MAX_LINE:
        raise MessageTooLong(f"{command} would have {len(line)} bytes, {MAX_LINE} is the limit")
    return line + b"\r\n"


def bare(message: Message) -> Message:
    """A message without its attributes, as a neighbour that knows none sends it."""
    form = _FORMS[_COMMANDS[type(message)]]
    return form.make(*message[: form.width])


def _given(form: _Form, values: tuple[Any, ...]) -> list[str]:
    return [
        f"{name}={_ATTRIBUTES[name][1](value)}"
        for name, value in zip(form.attributes, values, strict=True)
        if value is not None
    ]


def is_word(text: str) -> bool:
    """Whether a text can be the value of a word attribute."""
    return _WORD.fullmatch(text) is not None


def join_tag(name: str, voter: str) -> str:
    """The tag of a node that knows attributes: its friendly name and its lasting key."""
    return f"{name}@{voter}"


def split_tag(tag: str) -> tuple[str, str | None]:
    """Return the friendly name and the lasting key in a tag; without a key, None."""
    match = _KEYED_TAG.fullmatch(tag)
    return (match[1], match[2]) if match else (tag, None)
