"""Plain WebSocket frames (RFC 6455, section 5) in bulk: nearly all of the traffic of peerbus. No I/O.

A frame that is anything else, or not all there yet, is left to a full implementation of the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import pack
from typing import Final

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform without the compiled module
    from websockets.utils import apply_mask

#: First byte of a text message in one frame: FIN, no extension, opcode 1.
WHOLE_TEXT: Final = 0x81
#: Length field of a frame whose real length is in the next two bytes; 127 stands for eight bytes.
MASKED: Final = 0x80
LENGTH_16: Final = 126
#: Bytes of a close frame's reason: a control frame's 125 without the code (section 5.5).
CLOSE_REASON_LIMIT: Final = 123

#: Sizes whose headers are kept.
_KEPT_HEADERS: Final = 1024


def whole_texts(data: bytes) -> tuple[list[bytes], int]:
    """The text messages that `data` begins with, and how many bytes their frames take.

    Takes frames from a client as long as they are complete, masked, unfragmented, of text that is valid UTF-8, and
    shorter than 64 KiB. Where it stops there is something else, perhaps an error, or nothing.
    """
    texts = []
    start, size = 0, len(data)
    while size - start >= 6 and data[start] == WHOLE_TEXT and (length := data[start + 1] - MASKED) >= 0:
        body = start + 6
        if length >= LENGTH_16:
            if length > LENGTH_16 or size - start < 8:
                break
            body += 2
            length = data[start + 2] << 8 | data[start + 3]
            if length < LENGTH_16:  # not in the shortest form: an error (section 5.2)
                break
        end = body + length
        if end > size:
            break
        text = apply_mask(data[body:end], data[body - 4 : body])
        if not (text.isascii() or is_utf8(text)):
            break
        texts.append(text)
        start = end
    return texts, start


def text_frames(texts: Sequence[bytes]) -> bytes:
    """The frames that carry `texts`, which are UTF-8, from a server: not masked, one for each."""
    return b"".join([part for text in texts for part in (_header(len(text)), text)])


@lru_cache(_KEPT_HEADERS)
def _header(size: int) -> bytes:
    if size < LENGTH_16:
        return bytes((WHOLE_TEXT, size))
    return pack(">BBH", WHOLE_TEXT, LENGTH_16, size) if size < 1 << 16 else pack(">BBQ", WHOLE_TEXT, 127, size)


def is_utf8(text: bytes) -> bool:
    """Whether `text` is valid UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def may_close_with(code: int) -> bool:
    """Whether a close frame may carry this code (section 7.4, and the registry it founded)."""
    return 3000 <= code <= 4999 or (1000 <= code <= 1014 and code not in (1004, 1005, 1006))


def fitting_reason(reason: str) -> str:
    """The part of `reason` that fits into a close frame."""
    return reason.encode()[:CLOSE_REASON_LIMIT].decode(errors="ignore")
