"""Texts for the errors of links."""

from __future__ import annotations

import ssl
from typing import Final

CLOSED: Final = "closed by the other side"


def reason(error: BaseException | None) -> str:
    """The text for the error that ended a link or kept it from opening; None is an orderly end."""
    if error is None or isinstance(error, BrokenPipeError):
        return CLOSED
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, ConnectionResetError):  # asyncio's have no errno
        return "reset by the other side"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
