"""Every connection of every part is made as DATABASE_URL says: libpq's parameters, a schema, client certificates."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

import pytest
from kombu.connection import Connection
from kombu.entity import Queue
from psycopg.conninfo import conninfo_to_dict

import queues.celery.transport  # noqa: F401 - makes fivewire:// known
from brokersite.rigs.process import free_ports
from queues.etl.job.database import JobConnection
from tests.failover.conftest import MakeServer
from tests.failover.servers import DATABASE, HOST, PASSWORD, ROLE, Server, _written
from tests.lengths import lengths
from tests.process import Process
from tests.waiting import wait_until
from tests.wire.net.test_tls import Authority

TLS_WANTED, GSS_WANTED = 80877103, 80877104


class TlsProxy:
    """Takes connections over TLS alone, with a client's certificate, and hands them on to a server that has none."""

    def __init__(self, server: Server, authority: Authority) -> None:
        self._server = server
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
        self._context.load_cert_chain(*authority.issue("localhost"))
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (wanted := int.from_bytes(client.recv(8)[4:])) == GSS_WANTED:
                client.sendall(b"N")
            if wanted != TLS_WANTED:
                client.close()
                return
            client.sendall(b"S")
            secure = self._context.wrap_socket(client, server_side=True)
            upstream = socket.create_connection((self._server.host, self._server.port))
            self._open += [secure, upstream]
            back = threading.Thread(target=_pump, args=(upstream, secure))
            back.start()
            _pump(secure, upstream)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def server(make_server: MakeServer, tmp_path: Path) -> Iterator[tuple[Server, dict[str, str]]]:
    """A server behind TLS, with the schema `broker` beside the tables that are there, and what leads to both."""
    database, authority = make_server(), Authority(tmp_path)
    database.start()
    database.rows(f"create schema broker authorization {ROLE}")
    certificate, key = authority.issue(ROLE)
    proxy = TlsProxy(database, authority)
    (closed,) = free_ports(1)
    passwords = tmp_path / "passwords"
    _written(passwords, f"*:*:*:{ROLE}:{PASSWORD}\n")
    yield database, {
        "options": "-csearch_path=broker", "sslmode": "verify-ca", "sslrootcert": str(authority.file),
        "sslcert": str(certificate), "sslkey": str(_written(key, key.read_text())), "passfile": str(passwords),
        "target_session_attrs": "read-write", "connect_timeout": "7", "application_name": "shop", "keepalives": "1",
        "keepalives_idle": "30", "channel_binding": "prefer", "gssencmode": "disable", "port": f"{closed},{proxy.port}",
    }  # fmt: skip
    proxy.close()


def address(parameters: dict[str, str]) -> str:
    """DATABASE_URL: two hosts, of which the first is not there."""
    others = {name: value for name, value in parameters.items() if name != "port"}
    hosts = ",".join(f"{HOST}:{port}" for port in parameters["port"].split(","))
    return f"postgresql://{ROLE}@{hosts}/{DATABASE}?{urlencode(others, quote_via=quote)}"


def command(url: str, directory: Path, *arguments: str) -> Process:
    environment = {"DATABASE_URL": url, "DATA_DIR": directory / "data"}
    return Process(sys.executable, "manage.py", *arguments, environment=environment)


def done(process: Process) -> list[str]:
    status, lines, log = process.finish()
    assert status == 0, log
    return lines


@pytest.mark.parametrize("exports", lengths(short=False, long=True))
def test_every_part_connects_as_the_url_says(
    server: tuple[Server, dict[str, str]], tmp_path: Path, exports: bool, request: pytest.FixtureRequest
) -> None:
    database, parameters = server
    url = address(parameters)
    done(command(url, tmp_path, "migrate", "-v", "0"))
    done(command(url, tmp_path, "queue", "create", "orders"))
    listener = command(url, tmp_path, "runwire", "--blipmq", f"{HOST}:0", "--overhop", "off", "--sspq", "off")
    hydra = command(url, tmp_path, "runhydra", "--listen", f"{HOST}:0", "--found", "--name", "alone")
    with ExitStack() as stack:
        stack.enter_context(listener)
        stack.enter_context(hydra)
        with Connection(url.replace("postgresql", "fivewire", 1)) as celery, celery.Producer() as producer:
            producer.publish({"task": 1}, routing_key="tasks", declare=[Queue("tasks")])
        wait_until(lambda: database.rows("select 1 from broker.hydra_node"), "the node")
    queues = {one["name"] for one in json.loads("\n".join(done(command(url, tmp_path, "queue", "list", "--json"))))}
    assert {"orders", "tasks", "hydra.recv"} <= queues
    assert database.rows("select count(*) from public.queues_queue where name <> 'sspq'") == [(0,)]
    if exports:
        request.getfixturevalue("spark_defaults")
        done(command(url, tmp_path, "etl", "run"))
        assert database.rows("select state from broker.queues_etlrun") == [("succeeded",)]
        assert database.rows("select count(*) from public.queues_etlrun") == [(0,)]


def test_the_export_reads_where_the_url_says_and_java_is_told_the_same(
    server: tuple[Server, dict[str, str]],
) -> None:
    _, parameters = server
    given: dict[str, Any] = {name: str(value) for name, value in conninfo_to_dict(address(parameters)).items()}
    job = JobConnection(given)
    try:
        assert job.rows("show search_path") == [("broker",)]
        assert job.rows("select application_name from pg_stat_activity where pid = pg_backend_pid()") == [
            ("fivewire etl",)
        ]
        host, _, query = job.jdbc_url.partition("?")
    finally:
        job.close()
    assert host == f"jdbc:postgresql://{HOST}:{parameters['port'].split(',')[1]}/{DATABASE}"
    told = {name: value for name, [value] in parse_qs(query).items()}
    key = Path(told.pop("sslkey"))
    assert key.read_bytes()[:1] == b"\x30", "DER"
    assert key.stat().st_mode & 0o77 == 0
    assert told == {
        "ApplicationName": "fivewire etl", "prepareThreshold": "-1", "connectTimeout": "7", "tcpKeepAlive": "true",
        "options": "-csearch_path=broker", "sslmode": "verify-ca", "sslrootcert": parameters["sslrootcert"],
        "sslcert": parameters["sslcert"], "channelBinding": "prefer", "gssEncMode": "disable",
        "targetServerType": "primary",
    }  # fmt: skip
