"""A real network that has accounts: InspIRCd, and Atheme's services, as child processes.

    with AccountNetwork() as server:
        server.register("fivewire", "password")
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from io import BufferedRWPair
from pathlib import Path
from typing import Final, Self

from brokersite.rigs.process import free_ports
from tests.process import Process
from tests.waiting import PATIENCE

SERVER: Final = """
<server name="irc.example.net" description="test" network="Test" id="001">
<admin name="admin" nick="admin" email="admin@example.net">
<bind address="127.0.0.1" port="{clients}" type="clients">
<bind address="127.0.0.1" port="{servers}" type="servers">
<connect allow="*" timeout="60" threshold="1000" commandrate="100000" fakelag="off" localmax="1000" globalmax="1000"
    recvq="65536" resolvehostnames="no" useident="no">
<module name="cap"><module name="ircv3"><module name="sasl"><module name="services_account">
<module name="spanningtree"><module name="hidechans">
<sasl target="services.example.net">
<link name="services.example.net" ipaddr="127.0.0.1" port="{servers}" allowmask="127.0.0.1" sendpass="linked"
    recvpass="linked">
<uline server="services.example.net" silent="yes">
<path configdir="{place}" datadir="{place}" logdir="{place}" runtimedir="{place}" moduledir="/usr/lib/inspircd/modules">
<pid file="{place}/inspircd.pid">
"""

SERVICES: Final = """
loadmodule "modules/protocol/inspircd";
loadmodule "modules/backend/opensex";
loadmodule "modules/crypto/pbkdf2v2";
loadmodule "modules/nickserv/main";
loadmodule "modules/nickserv/register";
loadmodule "modules/saslserv/main";
loadmodule "modules/saslserv/plain";
serverinfo {{
    name = "services.example.net"; desc = "services"; numeric = "00A"; recontime = 1; netname = "Test";
    adminname = "admin"; adminemail = "admin@example.net"; registeremail = "admin@example.net"; auth = none;
    mta = "/bin/true"; loglevel = {{ error; info; network; }}; maxlogins = 50; maxusers = 50; mdlimit = 30;
    emaillimit = 100; emailtime = 300; casemapping = rfc1459;
}};
uplink "irc.example.net" {{
    host = "127.0.0.1"; send_password = "linked"; receive_password = "linked"; port = {servers};
}};
nickserv {{ nick = "NickServ"; user = "NickServ"; host = "services.example.net"; real = "nicks"; }};
saslserv {{ nick = "SaslServ"; user = "SaslServ"; host = "services.example.net"; real = "SASL"; }};
general {{ permissive_mode_enforcement; commit_interval = 5; default_clone_allowed = 5; default_clone_warn = 4; }};
"""

#: Services do not run as root, and the server does when it is told to.
NOBODY: Final = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


class _Program(Process):
    """One of the two; ready when it has said so."""

    def __init__(self, word: str, *command: str) -> None:
        self._word = word
        super().__init__(*command, merged=True)

    @property
    def ready(self) -> bool:
        """Whether it has said that it is."""
        return any(self._word in line for line in self.lines)


class AccountNetwork:
    """The server with its services."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.port, servers = free_ports(2)
        self._stack = contextlib.ExitStack()
        place = self._stack.enter_context(tempfile.TemporaryDirectory())
        root = os.geteuid() == 0
        Path(place).chmod(0o777)
        server, services = Path(place) / "inspircd.conf", Path(place) / "atheme.conf"
        server.write_text(SERVER.format(place=place, clients=self.port, servers=servers))
        services.write_text(SERVICES.format(servers=servers))
        self._stack.enter_context(
            _Program(
                "is now running", "/usr/sbin/inspircd", "--nofork", *(["--runasroot"] if root else []), "--config",
                str(server),
            )
        )  # fmt: skip
        paths = ("-c", str(services), "-D", place, "-l", f"{place}/log", "-p", f"{place}/pid")
        self._stack.enter_context(
            _Program("finished synching", *(NOBODY if root else ()), "/usr/bin/atheme-services", "-n", *paths)
        )

    def register(self, account: str, password: str) -> None:
        """Make an account."""
        with socket.create_connection((self.host, self.port), PATIENCE) as person, person.makefile("rwb") as lines:
            lines.write(f"NICK {account}\r\nUSER x 0 * :x\r\n".encode())
            lines.flush()
            _until(lines, b" 001 ")
            lines.write(f"PRIVMSG NickServ :REGISTER {password} a@example.net\r\n".encode())
            lines.flush()
            _until(lines, b"is now registered")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _until(lines: BufferedRWPair, word: bytes) -> None:
    """Read until a line has this in it, answering PING."""
    for line in lines:
        if line.startswith(b"PING"):
            lines.write(line.replace(b"PING", b"PONG"))
            lines.flush()
        if word in line:
            return
    raise AssertionError(f"closed before {word!r}")
