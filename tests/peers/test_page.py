"""docs/protocols/peerbus.md tells the truth."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from brokersite.environment import CHECKOUT
from peers.codec import frames, signing
from peers.codec.envelope import MAX_FRAME, MAX_ID, MAX_NAME, Envelope, delivered_size, new_id
from peers.codec.frames import Ack, Deliver, Peers, Register
from tests.peers.vectors import FIELDS, SECRET, SIGNED

PAGE = (Path(CHECKOUT) / "docs/protocols/peerbus.md").read_text()
#: The page without its line breaks.
WORDS = " ".join(PAGE.split())
JSON = [line for block in re.findall(r"^```json\n(.*?)^```$", PAGE, re.M | re.S) for line in block.splitlines()]


def test_every_example_is_json() -> None:
    assert len(JSON) == 6
    for each in JSON:
        assert json.loads(each)


def test_the_examples_are_the_frames_they_are_said_to_be() -> None:
    register, peers, envelope, deliver, ack, _ = (each.encode() for each in JSON)
    assert frames.handshake(register) == Register("dev-key", "alice")
    assert frames.register_frame("dev-key", "alice") == register
    assert frames.parse_pushed(peers) == Peers(["alice", "bob"])
    assert isinstance(frames.parse_frame(envelope), Envelope)
    assert signing.verify(envelope, SECRET)
    assert f"secret `{SECRET}`" in PAGE
    whole = frames.parse_pushed(deliver.replace(b'{"protocol_version":"v1"}', envelope))
    assert isinstance(whole, Deliver)
    assert whole.key == whole.envelope.id
    assert frames.parse_frame(ack) == Ack(whole.key)
    assert frames.ack_frame(whole.key) == ack


def test_the_signatures_on_the_page_are_right() -> None:
    table = re.search(r"^body +signature\n(.*?)^```", PAGE, re.M | re.S)
    assert table
    rows = [re.split(r" {2,}", line) for line in table[1].splitlines()]
    assert len(rows) == 4
    for body, signature in rows:
        assert signing.sign(FIELDS, body.encode(), SECRET) == signature
    broadcast = SIGNED[3]
    assert f"`{broadcast.body.decode()}` has `{broadcast.hmac}`" in WORDS


@pytest.mark.parametrize(
    "rejection",
    [
        frames.NO_FRAME, frames.NOT_TEXT, frames.MALFORMED, frames.NOT_REGISTER, frames.UNSUPPORTED_VERSION,
        frames.EMPTY_NAME, frames.UNUSABLE_NAME, frames.INVALID_TOKEN, frames.PERSISTENCE_FAILED, frames.NAME_CLAIMED,
        frames.TAKEN_OVER, frames.SLOW_CONSUMER, frames.GOING_AWAY,
    ],
)  # fmt: skip
def test_every_close_is_on_the_page(rejection: frames.Rejection) -> None:
    assert f"\n| {rejection.code} | `{rejection.reason}` |" in PAGE


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    id = new_id()
    direct, broadcast = (MAX_FRAME - delivered_size(id, each, 0) for each in (False, True))
    assert f"{direct} bytes, a broadcast for {broadcast}." in WORDS
    assert f"up to {direct - broadcast} bytes" in WORDS
    assert f"{MAX_FRAME} bytes (1 MiB)" in PAGE
    assert f"up to {MAX_ID} bytes of UTF-8" in PAGE
    assert f"over {MAX_NAME} characters" in PAGE


def test_the_deliver_frame_is_written_as_the_page_says() -> None:
    form = '{"protocol_version":"v1","type":"deliver","delivery_key":KEY,"envelope":ENVELOPE}'
    assert f"`{form}`" in PAGE
    assert frames.deliver_frame("1", b"{}").decode() == form.replace("KEY", '"1"').replace("ENVELOPE", "{}")
