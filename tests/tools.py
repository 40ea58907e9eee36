"""Programs that some tests need and that a machine may lack: those tests are skipped, or fail where all have to run."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable

import pytest

from queues.etl.jar import driver_jar

#: Begins the reason of each such skip; the tool's name follows, and after a colon what was found.
NEEDS = "needs "


def is_missing(tool: str) -> bool:
    """Whether a tool is not installed: Java (with PostgreSQL's JDBC driver), Chromium, Node.js (with npm), a broker, an
    IRC server, PgBouncer."""
    programs = {
        "Java": ["java"], "Chromium": ["chromium", "chromedriver"], "Node.js": ["node", "npm"],
        "RabbitMQ": ["/usr/lib/rabbitmq/bin/rabbitmq-server"], "NATS": ["nats-server"],
        "ngIRCd": ["/usr/sbin/ngircd"], "InspIRCd": ["/usr/sbin/inspircd", "/usr/bin/atheme-services"],
        "PgBouncer": ["/usr/sbin/pgbouncer"],
    }[tool]  # fmt: skip
    return not all(map(shutil.which, programs)) or (tool == "Java" and driver_jar(None) is None)


def need(config: pytest.Config, tool: str) -> None:
    """Skip the test that lacks this tool; fail it where everything has to run."""
    if is_missing(tool):
        lack(config, tool, "it is not installed")


def lack(config: pytest.Config, tool: str, reason: str) -> None:
    """Skip the test that cannot use a tool, for this reason; fail it where everything has to run."""
    if config.getoption("everything"):
        pytest.fail(f"{NEEDS}{tool}: {reason}")
    pytest.skip(f"{NEEDS}{tool}: {reason}")


def summary(reasons: Iterable[str]) -> str:
    """One line that counts the tests that lacked each tool, from the reasons of skips; empty if there are none."""
    counts = Counter(
        reason.removeprefix(NEEDS).split(":")[0] for reason in reasons if reason.startswith(NEEDS)
    )
    lacking = ", ".join(f"{count} without {tool}" for tool, count in sorted(counts.items()))
    return f"Not run: {lacking}. `make test-all` asks for these tools." if lacking else ""
