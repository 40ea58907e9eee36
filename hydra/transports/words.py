"""What went wrong with a link, in words for a log."""

from __future__ import annotations

import errno
import ssl
from typing import Final

CLOSED: Final = "closed by the other side"

_WORDS: Final = {
    errno.ECONNREFUSED: "refused",
    errno.EPIPE: CLOSED,
}


def reason(error: BaseException | None) -> str:
    """Say why a link has ended or could not be opened; None stands for an orderly end."""
    if error is None:
        return CLOSED
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, ConnectionResetError):  # those of asyncio have no number
        return "reset by the other side"
    if isinstance(error, OSError) and error.errno in _WORDS:
        return _WORDS[error.errno]
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
