"""TLS for the listeners: makes the server's context, and names faults of the files."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from queues.errors import BrokerError

StrPath = str | os.PathLike[str]


class TlsConfigurationError(BrokerError):
    """A certificate or key file can't be used.

    ``file`` is the path and ``reason`` its fault.
    """

    def __init__(self, file: StrPath, reason: str) -> None:
        super().__init__(f"{os.fspath(file)}: {reason}")
        self.file = Path(file)
        self.reason = reason


def server_context(cert: StrPath, key: StrPath, client_ca: StrPath | None = None) -> ssl.SSLContext:
    """Make the context for accepting TLS 1.2 and later.

    ``cert`` is the server's PEM certificate chain, ``key`` its unencrypted private key. With ``client_ca``
    (PEM), a client must show a certificate signed by one of its authorities; without, none is asked for.
    Raises :exc:`TlsConfigurationError`.
    """
    _check_pem(cert, "CERTIFICATE", "certificate")
    _check_pem(key, "PRIVATE KEY", "private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificates(cert)
    _load_chain(context, cert, key)
    if client_ca is not None:
        _check_pem(client_ca, "CERTIFICATE", "certificate")
        _load_certificates(client_ca, context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_pem(file: StrPath, label: str, meaning: str) -> None:
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise TlsConfigurationError(file, f"can't read the {meaning}: {error.strerror or error}") from None
    if not any(line.startswith(b"-----BEGIN ") and line.rstrip().endswith(f"{label}-----".encode())
               for line in content.splitlines()):  # fmt: skip
        raise TlsConfigurationError(file, f"holds no {meaning} in PEM form")


def _load_certificates(file: StrPath, context: ssl.SSLContext | None = None) -> None:
    """Trust the certificates of ``file`` in ``context``; without one, only check that they can be read."""
    try:
        (context or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)).load_verify_locations(cafile=file)
    except ssl.SSLError as error:
        raise TlsConfigurationError(file, f"holds a damaged certificate ({_why(error)})") from None


def _load_chain(context: ssl.SSLContext, cert: StrPath, key: StrPath) -> None:
    def refuse_password() -> str:
        # Without this OpenSSL would ask for the password on the terminal and wait.
        raise TlsConfigurationError(key, "the private key is encrypted: give one without a password")

    try:
        context.load_cert_chain(cert, key, password=refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"the private key does not belong to the certificate in {os.fspath(cert)}"
            raise TlsConfigurationError(key, reason) from None
        if error.reason in {"EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"}:
            raise TlsConfigurationError(cert, f"the certificate is too weak ({_why(error)})") from None
        raise TlsConfigurationError(key, f"holds a damaged private key ({_why(error)})") from None


def _why(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
