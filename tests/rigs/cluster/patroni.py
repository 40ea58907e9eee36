"""A Patroni cluster of the run's own: three nodes and an etcd on loopback, as an unprivileged user.

The nodes have the configuration of docs/patroni/patroni.yml; only names, addresses, directories and the watchdog, which
needs a device, differ. It takes the place of torture's own PostgreSQL.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
import yaml

from brokersite import embedded_home
from brokersite.environment import CHECKOUT
from brokersite.rigs.process import HOST, RigProcess, free_ports
from brokersite.rigs.torture.database import GONE, TortureDatabase
from queues.etl.job.pacing import stopped

CONFIGURATION: Final = CHECKOUT / "docs" / "patroni" / "patroni.yml"
PATRONI: Final = ("patroni[etcd3]==4.1.5", "psycopg[binary]>=3.3,<4")
NAMES: Final = ("one", "two", "three")
ROLE = DATABASE = "fivewire"
PASSWORD: Final = "torture"
MODES: Final = ("on", "strict", "quorum")
#: Seconds that the cluster has to get a primary with its standbys, and a question to Patroni.
HEALTHY, ASK = 180.0, 5.0
LOOK: Final = 0.2


class Node:
    """A node: Patroni with its PostgreSQL."""

    def __init__(self, cluster: PatroniCluster, name: str, etcd: str) -> None:
        self.name = name
        self._cluster = cluster
        self.port, self._api = free_ports(2)
        self.data = cluster.root / name / "data"
        self._configuration = cluster.root / name / "patroni.yml"
        self._process: RigProcess | None = None
        self._configuration.parent.mkdir()
        cluster.home.give(self._configuration.parent)
        self._configuration.write_text(yaml.safe_dump(self._options(etcd)))
        self._configuration.chmod(0o600)
        cluster.home.give(self._configuration)

    def _options(self, etcd: str) -> dict[str, Any]:
        options: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text())
        server, api = f"{HOST}:{self.port}", f"{HOST}:{self._api}"
        options |= {"name": self.name, "etcd3": {"hosts": etcd}, "restapi": {"listen": api, "connect_address": api}}
        options["bootstrap"]["dcs"] |= {
            "synchronous_mode": "quorum" if self._cluster.mode == "quorum" else True,
            "synchronous_mode_strict": self._cluster.mode != "on",
        }
        options["postgresql"] |= {
            "listen": server,
            "connect_address": server,
            "data_dir": str(self.data),
            "bin_dir": str(self._cluster.home.binaries),
            "pg_hba": [f"host {database} all {HOST}/32 scram-sha-256" for database in ("replication", "all")],
            "parameters": {"unix_socket_directories": "", "shared_buffers": "32MB"},
        }
        for account in options["postgresql"]["authentication"].values():
            account["password"] = PASSWORD
        options["watchdog"] = {"mode": "off"}
        return options

    def start(self) -> None:
        """Start Patroni, which starts PostgreSQL."""
        command = self._cluster.unprivileged([str(self._cluster.program), str(self._configuration)])
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": str(self._cluster.root)}
        log = self._cluster.data_dir / f"patroni-{self.name}.log"
        self._process = RigProcess(f"Patroni {self.name}", command, log, environment, cwd=self._cluster.root)

    def ask(self, path: str, request: dict[str, str] | None = None) -> tuple[int, str]:
        """A question to Patroni's interface, or a request; status 0: it does not answer."""
        data = None if request is None else json.dumps(request).encode()
        headers = {"Content-Type": "application/json"}
        question = urllib.request.Request(f"http://{HOST}:{self._api}/{path}", data, headers)
        try:
            with urllib.request.urlopen(question, timeout=ASK if data is None else HEALTHY) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    @property
    def leads(self) -> bool:
        """Whether it is the primary and has the leader's key."""
        return self.ask("primary")[0] == HTTPStatus.OK

    def server(self) -> list[psutil.Process]:
        """PostgreSQL's processes; none if it does not run."""
        try:
            postmaster = psutil.Process(int((self.data / "postmaster.pid").read_text().split("\n", 1)[0]))
            return [postmaster, *postmaster.children(recursive=True)]
        except (OSError, ValueError, psutil.NoSuchProcess):
            return []

    def processes(self) -> list[psutil.Process]:
        """Patroni's and PostgreSQL's processes."""
        assert self._process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            patroni = psutil.Process(self._process.pid)
            return [patroni, *patroni.children(recursive=True), *self.server()]
        return self.server()

    def kill_server(self) -> None:
        """kill -9 PostgreSQL's processes. Patroni starts it again, or another node is promoted."""
        _kill(self.server())

    def kill_patroni(self) -> None:
        """kill -9 Patroni; PostgreSQL runs on."""
        assert self._process is not None
        self._process.kill()

    def kill(self) -> None:
        """kill -9 Patroni and PostgreSQL, as when a machine loses power."""
        self.kill_patroni()
        _kill(self.server())

    def forget(self) -> None:
        """Delete the data of a node that does not run: Patroni copies the primary anew."""
        shutil.rmtree(self.data, ignore_errors=True)


class PatroniCluster(TortureDatabase):
    """Three nodes in a data directory that nothing else uses. `mode`: "on", "strict" or "quorum"."""

    def __init__(self, data_dir: Path, mode: str, program: Path | None = None) -> None:
        super().__init__(data_dir)
        self.mode = mode
        self.home = embedded_home.prepare(data_dir)
        self.root = self.home.root
        self.program = program or self._installed()
        self.etcd: RigProcess | None = None
        client, peer = (f"http://{HOST}:{port}" for port in free_ports(2))
        self._etcd_command = [
            "etcd", "--name", "one", "--data-dir", str(self.root / "etcd"), "--unsafe-no-fsync",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}",
        ]  # fmt: skip
        self.nodes = [Node(self, name, client.removeprefix("http://")) for name in NAMES]

    def _installed(self) -> Path:
        """Patroni, installed for the unprivileged user, who may not be able to run this environment's Python."""
        place = self.root / "patroni"
        python = shutil.which("python3", path="/usr/local/bin:/usr/bin") or "python3"
        subprocess.run([python, "-m", "venv", str(place)], check=True)
        subprocess.run([str(place / "bin" / "pip"), "install", "--quiet", *PATRONI], check=True)
        return place / "bin" / "patroni"

    def unprivileged(self, command: Sequence[str]) -> list[str]:
        """A command as the user that PostgreSQL runs as."""
        account = self.home.account
        if account is None:
            return list(command)
        return ["setpriv", "--reuid", str(account.uid), "--regid", str(account.gid), "--clear-groups", "--", *command]

    def environment(self, **more: str) -> dict[str, str]:
        hosts = ",".join(f"{HOST}:{node.port}" for node in self.nodes)
        url = f"postgresql://{ROLE}:{PASSWORD}@{hosts}/{DATABASE}"
        return super().environment(**{"DATABASE_URL": url, **more})

    def start(self) -> None:
        """Start it and make the tables and the key. Raises ProcessFailed, TimeoutError or CalledProcessError."""
        environment = {"PATH": os.environ.get("PATH", os.defpath)}
        command = self.unprivileged(self._etcd_command)
        self.etcd = RigProcess("etcd", command, self.data_dir / "etcd.log", environment, cwd=self.root)
        self.nodes[0].start()
        self.leader()
        for node in self.nodes[1:]:
            node.start()
        self.wait_healthy()
        with self._connect_as("postgres", "postgres") as connection:
            connection.execute(f"create role {ROLE} login password '{PASSWORD}' in role pg_monitor".encode())
            connection.execute(f"create database {DATABASE} owner {ROLE}".encode())
        self.make_tables()

    def leader(self) -> Node:
        """The primary. Raises TimeoutError when no node becomes primary in time."""
        deadline = time.monotonic() + HEALTHY
        while time.monotonic() < deadline:
            for node in self.nodes:
                if node.leads:
                    return node
            time.sleep(LOOK)
        raise TimeoutError(f"no primary after {HEALTHY:.0f} s; Patroni's logs are in {self.data_dir}")

    def wait_healthy(self) -> Node:
        """Return the primary once both others follow it, one of them synchronously. Raises TimeoutError."""
        deadline = time.monotonic() + HEALTHY
        while time.monotonic() < deadline:
            leader = self.leader()
            status, text = leader.ask("cluster")
            members = json.loads(text)["members"] if status == HTTPStatus.OK else []
            states = sorted((member["role"], member["state"]) for member in members)
            roles = {role for role, _ in states}
            followed = len(states) == len(NAMES) and {state for _, state in states} == {"running", "streaming"}
            if followed and roles & {"sync_standby", "quorum_standby"}:
                return leader
            time.sleep(LOOK)
        raise TimeoutError(f"the cluster is not whole after {HEALTHY:.0f} s: {leader.ask('cluster')[1]}")

    def connect(self) -> psycopg.Connection[Any]:
        return self._connect_as(ROLE, DATABASE)

    def _connect_as(self, user: str, database: str) -> psycopg.Connection[Any]:
        deadline = time.monotonic() + HEALTHY
        while True:
            port = self.leader().port
            try:
                return psycopg.connect(
                    host=HOST, port=port, user=user, password=PASSWORD, dbname=database, autocommit=True,
                    connect_timeout=30,
                )  # fmt: skip
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK)

    def processes(self) -> list[psutil.Process]:
        return self.leader().server()

    def kill(self, everything: bool) -> bool:
        """kill -9 all of the primary's PostgreSQL, which Patroni starts again or replaces; the addresses stay.

        A backend that outlives its postmaster would keep Patroni from starting another one.
        """
        self.leader().kill_server()
        self.wait_healthy()
        return False

    @contextlib.contextmanager
    def etcd_away(self) -> Iterator[None]:
        """Within it etcd stands still."""
        assert self.etcd is not None
        with stopped([psutil.Process(self.etcd.pid)]):
            yield

    def stop(self) -> None:
        for node in self.nodes:
            with contextlib.suppress(AssertionError):
                node.kill_patroni()
        for node in self.nodes:
            _kill(node.server())
        if self.etcd is not None:
            self.etcd.kill()

    def remove(self) -> None:
        self.stop()
        embedded_home.remove(self.data_dir)
        shutil.rmtree(self.data_dir, ignore_errors=True)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, timeout=GONE)
