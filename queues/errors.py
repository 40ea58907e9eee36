"""The base of the errors of the engine, the audit chains and the ETL."""

from __future__ import annotations


class DescribedError(Exception):
    """An error whose message is its class's docstring, followed by a detail where there is one."""

    def __init__(self, detail: str = "") -> None:
        text = (type(self).__doc__ or "").strip().rstrip(".")
        super().__init__(f"{text}: {detail}" if detail else text)
        self.detail = detail
