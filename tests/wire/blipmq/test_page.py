"""docs/protocols/blipmq.md has every NACK."""

from __future__ import annotations

import re

import pytest

from brokersite.environment import CHECKOUT
from wire.blipmq import codec

PAGE = (CHECKOUT / "docs/protocols/blipmq.md").read_text()
#: The codes and messages of the page's table.
ROWS = [
    (int(code), message)
    for code, messages in re.findall(r"^\| (\d{3}) \| ([^|]*) \|", PAGE, re.MULTILINE)
    for message in re.findall(r"`([^`]+)`", messages)
]
#: All that the broker sends; the one left out is what a client says of a NACK that it cannot read.
REJECTS = [
    *(value for value in vars(codec).values() if isinstance(value, codec.Reject) and value != codec.INVALID_NACK),
    codec.durable_publish_failed("…"),
]


@pytest.mark.parametrize("reject", REJECTS, ids=lambda reject: reject.message)
def test_every_nack_has_a_row(reject: codec.Reject) -> None:
    assert reject in ROWS
