"""The base of the broker's errors."""

from __future__ import annotations


class BrokerError(Exception):
    """The base of what the engine, operators' actions, audit chains and ETL raise about a request. The message says in
    words what is wrong; any other exception is a fault of the program."""


class DescribedError(BrokerError):
    """An error whose message is its class's docstring, followed by a detail where there is one."""

    def __init__(self, detail: str = "") -> None:
        text = (type(self).__doc__ or "").strip().rstrip(".")
        super().__init__(f"{text}: {detail}" if detail else text)
        self.detail = detail


class OperationError(BrokerError):
    """An operator's request cannot be done."""


class InvalidFields(OperationError):
    """An object cannot be made like this; `problems` has the reasons by field."""

    def __init__(self, problems: dict[str, list[str]]) -> None:
        super().__init__(" ".join(f"{field}: {' '.join(texts)}" for field, texts in problems.items()))
        self.problems = problems


class Busy(OperationError):
    """Other transactions are in the way; nothing was changed, and the same request may be made again."""


class WrongEncoding(DescribedError):
    """The database does not keep text as UTF-8."""
