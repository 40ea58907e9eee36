"""BROKER_LOG_FORMAT=json: every line of the log is an object with fields for what it is about."""

from __future__ import annotations

import json
import logging
import sys
import urllib.error
import urllib.request
from typing import Any

from brokersite.logs import OneLine
from brokersite.rigs.process import free_ports
from brokersite.settings import LOG_FORMATS
from tests.process import Process
from tests.waiting import PATIENCE, wait_until

PROBE = """
import logging, sys
import django
django.setup()
logging.getLogger("probe").warning("%d was said", 1, extra={"queue": "orders"})
try:
    raise KeyError("x")
except KeyError:
    logging.getLogger("probe").exception("failed")
print("pythonjsonlogger" in sys.modules)
"""


def objects(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def probe(log_format: str) -> tuple[str, str]:
    """What a process says whose logs have this format; its log."""
    environment = {
        "BROKER_LOG_FORMAT": log_format, "DATABASE_URL": "postgresql://localhost/none",
        "DJANGO_SETTINGS_MODULE": "brokersite.settings",
    }  # fmt: skip
    status, lines, log = Process(sys.executable, "-c", PROBE, environment=environment).finish()
    assert status == 0, log
    return lines[0], log


def test_a_line_is_an_object_and_so_is_a_traceback() -> None:
    loaded, log = probe("json")
    first, second = objects(log)
    assert loaded == "True"
    assert first.pop("time").endswith("+00:00")
    assert first.pop("process") > 0
    assert first == {"level": "WARNING", "logger": "probe", "message": "1 was said", "queue": "orders"}
    assert "KeyError: 'x'" in second["exc_info"]


def test_without_the_setting_nothing_of_it_is_loaded_and_lines_are_as_before() -> None:
    loaded, log = probe("text")
    assert loaded == "False"
    assert log.splitlines()[0].endswith(" WARNING probe: 1 was said")


def test_the_site_logs_objects(database_url: str) -> None:
    [port] = free_ports(1)
    environment = {"DATABASE_URL": database_url, "BROKER_LOG_FORMAT": "json"}
    command = ("-m", "daphne", "-b", "127.0.0.1", "-p", str(port), "brokersite.asgi:application")
    site = Process(sys.executable, *command, environment=environment)
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/admin/", headers={"Host": "elsewhere.example"})

        def refused() -> bool:
            try:
                urllib.request.urlopen(request, timeout=PATIENCE)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code == 400
            except OSError:  # it does not listen yet
                return False
            return False

        wait_until(refused, lambda: site.log)
        wait_until(lambda: "elsewhere.example" in site.log)
        assert [line["logger"] for line in objects(site.log) if "elsewhere" in line["message"]]
    finally:
        site.stop()


def test_a_name_with_line_ends_and_escapes_stays_on_one_line() -> None:
    assert LOG_FORMATS["text"]["class"] == f"{OneLine.__module__}.{OneLine.__name__}"  # type: ignore[index]
    name = "a\r\n2026-11-29 ERROR queues: \x1b[2J\u2028\u202e\x85é"
    record = logging.LogRecord("wire", logging.WARNING, __file__, 1, "no queue %s", (name,), None)
    said = OneLine("{levelname} {name}: {message}", style="{").format(record)
    assert said == r"WARNING wire: no queue a\r\n2026-11-29 ERROR queues: \x1b[2J\u2028\u202e\x85é"
