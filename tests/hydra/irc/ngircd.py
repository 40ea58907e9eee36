"""A real IRC server, ngIRCd, as a child process: one that cuts lines, keeps modes and refuses."""

from __future__ import annotations

import tempfile
from pathlib import Path

from brokersite.rigs.process import free_ports
from tests.process import Process

CONFIGURATION = """
[Global]
Name = irc.example.net
Info = test
Listen = 127.0.0.1
Ports = {port}
PidFile =
[Limits]
MaxConnectionsIP = 0
MaxNickLength = 20
MaxPenaltyTime = 0
[Options]
DNS = no
Ident = no
PAM = no
"""


class NgircdProcess(Process):
    """The server. It delays nobody, as ircds may that are busy or flooded."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self._place = tempfile.TemporaryDirectory()
        file = Path(self._place.name) / "ngircd.conf"
        file.write_text(CONFIGURATION.format(port=self.port))
        Path(self._place.name).chmod(0o755)  # it gives up root's rights
        super().__init__("/usr/sbin/ngircd", "--nodaemon", "--config", str(file), merged=True)
        self.wait_ready()

    @property
    def ready(self) -> bool:
        """Whether it listens."""
        return any(" ready." in line for line in self.lines)

    def _close(self) -> None:
        super()._close()
        self._place.cleanup()
