"""Messages of queues and topics for peers: each becomes an envelope that the gateway signs."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any

from msgpack import unpackb  # type: ignore[import-untyped]

from peers.codec.envelope import build, encode, timestamp
from peers.errors import InvalidEnvelope, MessageTooLarge, WeakSecret
from queues.engine.api import Content, PeerMessage, Undeliverable

SOURCE = "fivewire"


def wrap(message: PeerMessage, to: str, secret: str) -> bytes:
    """The envelope of a message for a peer, the same each time. Raises Undeliverable, and nothing else.

    Its id is the message's for ever, `from` and `source` are "fivewire". The body is the message's value if it is JSON
    or MessagePack, a string if it is bytes that are UTF-8, and else {"base64": …}.
    """
    if not secret:
        raise Undeliverable("PEERBUS_HMAC_SECRET is not set, so that it cannot be signed")
    try:
        moment = datetime.datetime.fromtimestamp(message.published, datetime.UTC)
        envelope = build(
            sender=message.sender, to=to, body=_body(message), secret=secret, source=SOURCE, id=message.key,
            ts=timestamp(moment),
        )  # fmt: skip
    except (InvalidEnvelope, MessageTooLarge, WeakSecret) as error:
        raise Undeliverable(str(error)) from error
    except Exception as error:  # of a MessagePack value, say, that JSON has no form for
        raise Undeliverable(f"it cannot be written as an envelope ({type(error).__name__})") from error
    return envelope.text


def _body(message: PeerMessage) -> bytes:
    payload = message.payload
    if message.content in (Content.JSON, Content.LETTER):
        return payload
    if message.content == Content.MSGPACK:
        return json.dumps(unpackb(payload), default=_bytes, ensure_ascii=False, separators=(",", ":")).encode()
    try:
        return encode(payload.decode())
    except UnicodeDecodeError:
        return encode(_bytes(payload))


def _bytes(value: Any) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}
