"""Options read from environment variables: what one is, how text becomes its value, what to say if it cannot.

A class of options is written like this, one entry an option::

    class EngineSettings(Options):
        BROKER_PREFETCH = integer(10_000, "Messages a process holds in memory for each queue.", minimum=1)

``EngineSettings.read(os.environ)`` parses each, and either returns an object whose attributes are the typed values or
raises :exc:`InvalidEnvironment`, which names every variable that is wrong.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, overload

from django.core.exceptions import ImproperlyConfigured
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

T = TypeVar("T")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class InvalidEnvironment(ImproperlyConfigured):
    """One or more environment variables are wrong; the message has a line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(["The environment is not valid:", *(f"  {line}" for line in problems)]))
        self.problems = problems


def _spell(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


@dataclass(eq=False, repr=False)
class Option(Generic[T]):
    """One environment variable: its default, what it means, and the parser of its text.

    ``parse`` raises ValueError for a text that is no value; ``expected`` completes "it must be …".
    ``default`` is the value itself or, for one that depends on the options declared before it, a function
    of the values read so far; ``default_text`` then says in words what comes out.
    """

    default: T | Callable[[Mapping[str, Any]], T]
    help: str
    _: KW_ONLY
    parse: Callable[[str], T]
    expected: str
    default_text: str | None = None
    #: Whether no message and no page may show its value.
    secret: bool = False
    #: Writes a value as the text that `parse` reads back.
    spell: Callable[[Any], str] = _spell
    name: str = field(init=False)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Option[T]: ...
    @overload
    def __get__(self, instance: Options, owner: type) -> T: ...
    def __get__(self, instance: Options | None, owner: type) -> Option[T] | T:
        if instance is None:
            return self
        value: T = instance.values[self.name]
        return value

    def value(self, text: str | None, earlier: Mapping[str, Any]) -> T:
        """The value of ``text``; of the default when it is None or empty. Raises ValueError."""
        if text:
            return self.parse(text)
        return self.default(earlier) if callable(self.default) else self.default

    def with_default(self, default: T, default_text: str) -> Option[T]:
        """The same option with another default."""
        changed = copy.copy(self)
        changed.default, changed.default_text = default, default_text
        return changed


class Options:
    """A set of options and, on an instance, their values. Values come out in the order of declaration."""

    values: Mapping[str, Any]

    #: Checks over several options at once: each is given the instance and yields sentences about its faults.
    checks: ClassVar[tuple[Callable[[Any], Iterator[str]], ...]] = ()

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    @classmethod
    def sections(cls) -> Iterator[tuple[str, list[Option[Any]]]]:
        """Every class of the family that declares options: its docstring, and its options that none overrides."""
        for kind in reversed(cls.__mro__):
            members = [(name, member) for name, member in vars(kind).items() if isinstance(member, Option)]
            own = [member for name, member in members if inspect.getattr_static(cls, name) is member]
            if own:
                yield (kind.__doc__ or kind.__name__).strip(), own

    @classmethod
    def options(cls) -> list[Option[Any]]:
        return [option for _, own in cls.sections() for option in own]

    @classmethod
    def read(cls, environ: Mapping[str, str], known: Mapping[str, Any] | None = None) -> Self:
        """Read every option from ``environ``. Raises InvalidEnvironment with all that is wrong.

        ``known``: values that defaults depend on and that are no options of this class.
        """
        values: dict[str, Any] = dict(known or {})
        problems = list(cls._misspelt(environ))
        for option in cls.options():
            text = environ.get(option.name)
            try:
                values[option.name] = option.value(text, values)
            except ValueError:
                problems.append(f"{option.name}={_shown(option, text)}: it must be {option.expected}.")
            except KeyError:  # its default depends on an option that is wrong, which is said
                if not problems:
                    raise
            except OSError as error:  # of a default that is kept in a file
                problems.append(f"{option.name} is not set, and its default can be neither read nor kept: {error}.")
        if problems:
            raise InvalidEnvironment(problems)
        self = cls(values)
        problems = [problem for check in cls.checks for problem in check(self)]
        if problems:
            raise InvalidEnvironment(problems)
        return self

    @classmethod
    def _misspelt(cls, environ: Mapping[str, str]) -> Iterator[str]:
        """Unknown variables whose names are one slip away from an option's."""
        options = {option.name: option for option in cls.options()}
        for name in sorted(environ.keys() - options):
            if not name.startswith("BROKER_"):
                continue
            for near in difflib.get_close_matches(name, options, n=1, cutoff=0.9):
                shown = _shown(options[near], environ[name])
                yield f"{name}={shown}: there is no such setting; did you mean {near}?"


def _shown(option: Option[Any], text: str | None) -> str:
    """The text of a variable as a message may show it: no secret, and no password of a URL."""
    if option.secret:
        return "***"
    return re.sub(r"(password=)[^&\s'\"]*", r"\1***", re.sub(r"(://[^:/@]*:)[^@]*@", r"\1***@", repr(text)))


def integer(default: int, help: str, *, minimum: int = 0, maximum: int = 2**31 - 1) -> Option[int]:
    """A whole number within bounds; underscores between digits are allowed."""
    expected = f"a whole number from {minimum} to {maximum}"
    return Option(default, help, parse=lambda text: _within(int(text), minimum, maximum), expected=expected)


def seconds(default: float, help: str, *, minimum: float = 0.0, maximum: float = 86_400.0) -> Option[float]:
    """A time in seconds, fractions allowed, within bounds."""
    expected = f"seconds from {minimum:.10g} to {maximum:.10g}, such as 0.5"
    return Option(default, help, parse=lambda text: _within(float(text), minimum, maximum), expected=expected)


_UNITS = {"": 1, "B": 1, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}


def size(default: int, help: str, *, minimum: int = 1, maximum: int = 64 * 2**30) -> Option[int]:
    """A number of bytes, plain or with KiB, MiB or GiB behind it."""

    def parse(text: str) -> int:
        match = re.fullmatch(r"(\d+) *([KMG]iB|B|)", text.strip(), re.IGNORECASE)
        if match is None:
            raise ValueError(text)
        return _within(int(match[1]) * _UNITS[match[2].upper()], minimum, maximum)

    expected = f"a size from {size_text(minimum)} to {size_text(maximum)}, such as 65536 or 16MiB"
    return Option(default, help, parse=parse, expected=expected, default_text=size_text(default))


def size_text(count: int) -> str:
    """``count`` bytes as the shortest text that :func:`size` reads back."""
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= factor and count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)


def flag(default: bool, help: str) -> Option[bool]:
    """On or off."""

    def parse(text: str) -> bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise ValueError(text)

    return Option(default, help, parse=parse, expected="on or off", default_text="on" if default else "off")


def mode(default: int, help: str) -> Option[int]:
    """A umask: three octal digits."""

    def parse(text: str) -> int:
        if not re.fullmatch("0?[0-7]{3}", text):
            raise ValueError(text)
        return int(text, 8)

    spell = "{:03o}".format
    expected = "a umask, such as 077 or 027"
    return Option(default, help, parse=parse, expected=expected, default_text=spell(default), spell=spell)


def text(
    default: str | Callable[[Mapping[str, Any]], str],
    help: str,
    *,
    maximum: int = 255,
    default_text: str | None = None,
    secret: bool = False,
) -> Option[str]:
    """Any text up to ``maximum`` characters."""

    def parse(value: str) -> str:
        if len(value) > maximum:
            raise ValueError(value)
        return value

    expected = f"a text of 1 to {maximum} characters"
    return Option(default, help, parse=parse, expected=expected, default_text=default_text, secret=secret)


def choice(default: str, help: str, *among: str) -> Option[str]:
    """One of some words."""

    def parse(value: str) -> str:
        if value not in among:
            raise ValueError(value)
        return value

    return Option(default, help, parse=parse, expected=" or ".join(among))


def words(
    default: tuple[str, ...] | Callable[[Mapping[str, Any]], tuple[str, ...]],
    help: str,
    *,
    default_text: str | None = None,
    shortest: int = 0,
    secret: bool = False,
) -> Option[tuple[str, ...]]:
    """Words with commas between them; with `shortest` at least one, each of so many characters."""

    def parse(value: str) -> tuple[str, ...]:
        found = tuple(word.strip() for word in value.split(",") if word.strip())
        if shortest and (not found or min(map(len, found)) < shortest):
            raise ValueError(value)
        return found

    expected = "words with commas between them" + (f", each of {shortest} characters or more" if shortest else "")
    if default_text is None and not callable(default):
        default_text = ",".join(default)
    return Option(default, help, parse=parse, expected=expected, default_text=default_text, secret=secret)


def directory(default: Path | Callable[[Mapping[str, Any]], Path], help: str, *, default_text: str) -> Option[Path]:
    """A directory that exists or may be made. A relative one is taken from the working directory."""

    def parse(value: str) -> Path:
        path = Path(value).expanduser().absolute()
        if path.exists() and not path.is_dir():
            raise ValueError(value)
        return path

    expected = "a directory, or a path where one can be made"
    return Option(default, help, parse=parse, expected=expected, default_text=default_text)


def file(help: str) -> Option[Path | None]:
    """A file that must be there; none when unset."""

    def parse(value: str) -> Path | None:
        path = Path(value).expanduser().absolute()
        if not path.is_file():
            raise ValueError(value)
        return path

    return Option(None, help, parse=parse, expected="the path of a file that exists", default_text="none")


def networks(help: str) -> Option[tuple[Network, ...]]:
    """IPv4 and IPv6 networks or single addresses with commas between them."""

    def parse(value: str) -> tuple[Network, ...]:
        return tuple(ipaddress.ip_network(word.strip()) for word in value.split(",") if word.strip())

    expected = "networks with commas between them, such as 10.0.0.0/8,192.168.7.20,fd00::/8"
    return Option((), help, parse=parse, expected=expected, default_text="none")


def postgres_url(help: str, *, default_text: str) -> Option[str | None]:
    """A PostgreSQL connection URI; None when unset."""

    def parse(value: str) -> str | None:
        if not value.startswith(("postgresql://", "postgres://")):
            raise ValueError(value)
        try:
            given = conninfo_to_dict(value)
        except ProgrammingError as error:
            raise ValueError(value) from error
        ports = str(given.get("port") or "5432").split(",")
        if not (given.get("dbname") or given.get("service")) or not all(port.isdigit() for port in ports):
            raise ValueError(value)
        return value

    expected = "a PostgreSQL URI with a database name, such as postgresql://user:password@host:5432/name"
    return Option(None, help, parse=parse, expected=expected, default_text=default_text)


N = TypeVar("N", int, float)


def _within(value: N, minimum: N, maximum: N) -> N:
    if not minimum <= value <= maximum:
        raise ValueError(value)
    return value
