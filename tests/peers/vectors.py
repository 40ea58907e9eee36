"""The exact bytes of peerbus that other implementations have made."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

VECTORS: Final[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())["peerbus"]
SECRET: Final[str] = VECTORS["secret"]
FIRST: Final[str] = VECTORS["hmac"][0]["envelope"]
FIELDS: Final[dict[str, str]] = {key: value for key, value in json.loads(FIRST).items() if key != "body"}
TO_ALL: Final = {"to": "*", "kind": "broadcast"}


class Signed(NamedTuple):
    """An envelope and its signature."""

    fields: dict[str, str]
    body: bytes
    canonical_body: bytes
    hmac: str


def _signed() -> list[Signed]:
    plain, spaced, empty, broadcast, escaped = VECTORS["hmac"]
    spelled = escaped["same, canonical body (as Go escapes it)"].encode()
    return [
        Signed(FIELDS, b'{"hello":"world"}', b'{"hello":"world"}', plain["hmac"]),
        Signed(FIELDS, spaced["same, body"].encode(), spaced["canonical body"].encode(), spaced["hmac"]),
        Signed(FIELDS, b"", empty["canonical body"].encode(), empty["hmac"]),
        Signed(FIELDS | TO_ALL, b'{"hello":"all"}', b'{"hello":"all"}', broadcast["hmac"]),
        Signed(FIELDS, spelled, spelled, escaped["hmac"]),
        Signed(FIELDS, '{"a":"<b>&\u2028é","n":1.0,"e":1E5,"s":"<\\/"}'.encode(), spelled, escaped["hmac"]),
    ]


SIGNED: Final = _signed()
