"""libpq's connection parameters translated for PostgreSQL's JDBC driver."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

#: JDBC parameters by libpq's names. The others have no counterpart, or choose the host.
NAMES = {
    "options": "options", "sslmode": "sslmode", "sslrootcert": "sslrootcert", "sslcert": "sslcert",
    "sslpassword": "sslpassword", "sslnegotiation": "sslNegotiation", "channel_binding": "channelBinding",
    "gssencmode": "gssEncMode", "krbsrvname": "kerberosServerName", "connect_timeout": "connectTimeout",
}  # fmt: skip
#: libpq's default places of the client's certificate and key.
CERTIFICATE, KEY = (Path("~/.postgresql") / name for name in ("postgresql.crt", "postgresql.key"))


def jdbc_url(host: str, port: int, database: str, properties: Mapping[str, str]) -> str:
    """The URL of a database."""
    name = f"[{host}]" if ":" in host else host
    return f"jdbc:postgresql://{name}:{port}/{quote(database, safe='')}?{urlencode(properties, quote_via=quote)}"


def jdbc_properties(used: Mapping[str, str]) -> dict[str, str]:
    """The driver's properties for a connection with these parameters of libpq's."""
    found = {NAMES[name]: value for name, value in used.items() if name in NAMES and value}
    found |= {"prepareThreshold": "-1", "tcpKeepAlive": "false" if used.get("keepalives") == "0" else "true"}
    found.setdefault("connectTimeout", "10")
    if used.get("sslrootcert") == "system":
        del found["sslrootcert"]
        found["sslfactory"] = "org.postgresql.ssl.DefaultJavaSSLFactory"
    if used.get("target_session_attrs") in ("read-write", "primary"):
        found["targetServerType"] = "primary"
    certificate, key = used.get("sslcert") or _default(CERTIFICATE), used.get("sslkey") or _default(KEY)
    if certificate and key and not key.startswith("pkcs11:") and used.get("sslmode") != "disable":
        found |= {"sslcert": certificate, "sslkey": key_for_java(Path(key), used.get("sslpassword"))}
    return found


def key_for_java(path: Path, password: str | None) -> str:
    """The path of a copy of a private key in the form that Java reads (PKCS #8, DER), in the job's directory."""
    from cryptography.hazmat.primitives import serialization

    data = path.expanduser().read_bytes()
    if b"-----BEGIN" not in data:
        return str(path)
    secret = password.encode() if password and b"ENCRYPTED" in data else None
    key = serialization.load_pem_private_key(data, secret)
    form = serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    descriptor, copy = tempfile.mkstemp(suffix=".pk8")  # readable by its owner alone
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(key.private_bytes(*form))
    return copy


def _default(path: Path) -> str:
    found = path.expanduser()
    return str(found) if found.exists() else ""
