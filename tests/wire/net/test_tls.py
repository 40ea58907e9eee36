"""TLS: what the configuration accepts, and listeners that speak it, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.certificates import with_key_identifiers
from tests.wire.serving import EVENT_LOOPS, Recorder, Server, run_scenario, serving
from wire.net.limits import Closure, Refusal
from wire.net.tls import TlsConfigurationError, server_context

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=EVENT_LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return functools.partial(run_scenario, request.param)


class Authority:
    """Makes certificates and writes them into a directory: NAME.crt and NAME.key."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = self._write(name, self._sign(self.subject, self.key, x509.BasicConstraints(True, None)))

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, constraints: x509.BasicConstraints
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            issuer_name=self.subject,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(hours=1),
            not_valid_after=now + datetime.timedelta(hours=1),
        )
        names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        builder = builder.add_extension(constraints, True).add_extension(names, False)
        return with_key_identifiers(builder, key, self.key, constraints.ca).sign(self.key, hashes.SHA256())

    def _write(self, name: str, certificate: x509.Certificate) -> Path:
        file = self.directory / f"{name}.crt"
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return file

    def issue(self, name: str, password: bytes | None = None) -> tuple[Path, Path]:
        """Make a certificate; returns its file and that of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            encryption = serialization.BestAvailableEncryption(password)
        key_file = self.directory / f"{name}.key"
        key_file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return self._write(name, self._sign(subject, key, x509.BasicConstraints(False, None))), key_file


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


# Configuration


def test_old_versions_of_tls_are_not_spoken(authority: Authority) -> None:
    context = server_context(*authority.issue("server"))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE


def test_a_client_authority_makes_certificates_a_must(authority: Authority) -> None:
    context = server_context(*authority.issue("server"), client_ca=authority.file)
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1


def refused(cert: Path, key: Path, client_ca: Path | None = None) -> tuple[Path, str]:
    with pytest.raises(TlsConfigurationError) as caught:
        server_context(cert, key, client_ca)
    assert str(caught.value) == f"{caught.value.file}: {caught.value.reason}"
    return caught.value.file, caught.value.reason


def test_a_missing_file_is_named(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("server")
    missing = tmp_path / "missing.pem"
    assert refused(missing, key) == (missing, "can't read the certificate: No such file or directory")
    assert refused(cert, missing) == (missing, "can't read the private key: No such file or directory")
    assert refused(cert, key, missing) == (missing, "can't read the certificate: No such file or directory")


def test_swapped_files_are_named(authority: Authority) -> None:
    cert, key = authority.issue("server")
    assert refused(key, cert) == (key, "holds no certificate in PEM form")
    assert refused(cert, cert) == (cert, "holds no private key in PEM form")
    assert refused(cert, key, key) == (key, "holds no certificate in PEM form")


@pytest.mark.parametrize("which", ["certificate", "private key", "client authority"])
def test_a_damaged_file_is_named(authority: Authority, which: str) -> None:
    cert, key = authority.issue("server")
    file = {"certificate": cert, "private key": key, "client authority": authority.file}[which]
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], lines[1][:20], lines[-1], ""]))
    named, reason = refused(cert, key, authority.file)
    assert named == file
    assert reason.startswith("holds a damaged private key" if file == key else "holds a damaged certificate")


def test_the_key_of_another_certificate_is_named(authority: Authority) -> None:
    cert, _ = authority.issue("server")
    _, other_key = authority.issue("other")
    assert refused(cert, other_key) == (
        other_key,
        f"the private key does not belong to the certificate in {cert}",
    )


def test_an_encrypted_key_is_refused_without_asking_for_its_password(authority: Authority) -> None:
    cert, key = authority.issue("server", password=b"secret")
    assert refused(cert, key) == (key, "the private key is encrypted: give one without a password")


# Listeners


class Shout(Recorder):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.connection.write(data.upper())


@contextlib.asynccontextmanager
async def tls_client(server: Server, trusted: Path, identity: tuple[Path, Path] | None = None) -> Any:
    context = ssl.create_default_context(cafile=str(trusted))
    if identity is not None:
        context.load_cert_chain(*identity)
    reader, writer = await asyncio.open_connection(
        server.address.host, server.address.port, ssl=context, server_hostname="localhost"
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def test_a_client_is_served_over_tls(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        tls = server_context(*authority.issue("server"))
        async with serving(Shout, tls=tls) as server:
            async with tls_client(server, authority.file) as (reader, writer):
                writer.write(b"hello" * 100_000)
                assert await reader.readexactly(500_000) == b"HELLO" * 100_000
                session = await server.sessions.get()
                assert session.connection.peer_certificate is None
                assert session.connection.peer == writer.get_extra_info("sockname")
            await session.lost()
            await server.closed(Closure.PEER)
            assert session.heard[-2:] == ["eof", "lost"]
        assert server.listener.limits.total == 0

    run(scenario())


def test_a_known_client_shows_its_certificate(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        tls = server_context(*authority.issue("server"), client_ca=authority.file)
        async with (
            serving(Shout, tls=tls) as server,
            tls_client(server, authority.file, authority.issue("worker-7")) as (reader, writer),
        ):
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"HELLO"
            certificate = (await server.sessions.get()).connection.peer_certificate
            assert certificate["subject"] == ((("commonName", "worker-7"),),)

    run(scenario())


@pytest.mark.parametrize("stranger", [False, True], ids=["no certificate", "of another authority"])
def test_a_client_without_a_known_certificate_gets_no_session(
    run: Run, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, stranger: bool
) -> None:
    async def scenario() -> None:
        tls = server_context(*authority.issue("server"), client_ca=authority.file)
        identity = Authority(tmp_path, "stranger").issue("worker-7") if stranger else None
        async with serving(Shout, tls=tls) as server:
            # In TLS 1.3 the client believes in its connection until it first reads.
            with contextlib.suppress(OSError):
                async with tls_client(server, authority.file, identity) as (reader, writer):
                    writer.write(b"hello")
                    assert await reader.read() == b""
            await server.refused(Refusal.TLS_HANDSHAKE)
            assert server.sessions.empty()
            assert server.listener.stats.refused[Refusal.TLS_HANDSHAKE] == 1
            assert server.listener.stats.accepted == 0
            assert server.listener.limits.total == 0

    run(scenario())
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith("test refused 1 connection(s), the last from 127.0.0.1 (tls_handshake: ")
    assert "certificate" in message.lower()


def test_a_client_that_speaks_no_tls_is_refused(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        async with serving(tls=server_context(*authority.issue("server"))) as server:
            reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            await server.refused(Refusal.TLS_HANDSHAKE)

    run(scenario())


def test_a_silent_client_holds_a_place_only_until_the_handshake_time_is_over(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        tls = server_context(*authority.issue("server"))
        async with serving(tls=tls, handshake_timeout=0.2, max_connections=1) as server:
            address = server.address.host, server.address.port
            # Both are there before the listener accepts the first: its time begins only then.
            with socket.create_connection(address) as silent, socket.create_connection(address):
                silent.setblocking(False)
                await server.refused(Refusal.MAX_CONNECTIONS)
                assert server.listener.stats.refused[Refusal.MAX_CONNECTIONS] == 1
                assert await asyncio.get_running_loop().sock_recv(silent, 1) == b""
                await server.refused(Refusal.TLS_HANDSHAKE)
            server.listener.options = dataclasses.replace(server.listener.options, handshake_timeout=60)
            async with tls_client(server, authority.file):
                await server.sessions.get()

    run(scenario())


def test_a_stop_does_not_wait_for_unfinished_handshakes(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        async with serving(tls=server_context(*authority.issue("server")), max_connections=2) as server:
            reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
            async with tls_client(server, authority.file):
                await server.sessions.get()
                assert server.listener.limits.total == 2
                assert await server.listener.stop(30) == 0
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
            assert server.listener.stats.refused[Refusal.STOPPING] == 1
            assert server.listener.limits.total == 0

    run(scenario())


def test_the_last_answer_arrives_before_tls_ends(run: Run, authority: Authority) -> None:
    class LastWord(Recorder):
        def data_received(self, data: bytes) -> None:
            self.connection.write(b"x" * 3_000_000)
            self.connection.close()

    async def scenario() -> None:
        tls = server_context(*authority.issue("server"))
        async with serving(LastWord, tls=tls) as server:
            async with tls_client(server, authority.file) as (reader, writer):
                writer.write(b"bad magic")
                assert len(await reader.read()) == 3_000_000
            await server.closed(Closure.SESSION)

    run(scenario())


def test_a_tls_client_that_half_closes_is_over(
    run: Run, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    class Keep(Recorder):
        def eof_received(self) -> bool:
            self._note("eof")
            return True

    async def scenario() -> None:
        tls = server_context(*authority.issue("server"))
        async with serving(Keep, tls=tls) as server:
            async with tls_client(server, authority.file) as (_, writer):
                writer.write(b"fire and forget")
            session = await server.sessions.get()
            await session.lost()
            assert session.data == b"fire and forget"
            assert session.heard[-2:] == ["eof", "lost"]

    run(scenario())
    assert not caplog.records
