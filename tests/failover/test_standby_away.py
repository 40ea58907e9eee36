"""A synchronous standby that is away while operators change something: they are told, and nothing hangs for ever."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from queues.database.commit_watch import UNCONFIRMED
from tests.failover.conftest import MakeServer
from tests.failover.servers import Server, url
from tests.process import Process
from tests.waiting import wait_until

#: Seconds of a commit from which on it counts as one that waits.
SHORT = {"BROKER_STALL_TIMEOUT": 0.2}
#: The answer to the form for a new route, and the next page.
ADD_A_ROUTE = """
    import django
    django.setup()
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.test import Client

    with connection.cursor() as cursor:
        cursor.execute("set synchronous_commit to local")
        client = Client()
        client.force_login(get_user_model().objects.create_superuser("root"))
        cursor.execute("reset synchronous_commit")
    answer = client.post("/admin/queues/route/add/", {"source": "topic:a", "target": "topic:b"})
    print(answer.status_code, client.get("/admin/").content.decode().replace("\\n", " "))
"""


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """A server that waits with each commit for a standby that there is not."""
    made = make_server()
    made.start(synchronous_standby_names="nosuch")
    return made


@pytest.mark.parametrize("command", ["queue create orders", "apikey create desk --publish orders"])
def test_a_command_says_that_its_change_waits_for_the_standby_and_ctrl_c_ends_it(server: Server, command: str) -> None:
    environment = {"DATABASE_URL": url(server), **SHORT}
    process = Process(sys.executable, "manage.py", *command.split(), environment=environment, merged=True)
    try:
        wait_until(lambda: f"Waiting: the change {UNCONFIRMED}" in process.log, lambda: process.log)
        assert process.stop(signal.SIGINT) == 1
    finally:
        process.end()
    assert process.log.endswith(f"CommandError: Interrupted: the change {UNCONFIRMED}.\n"), process.log
    assert "Traceback" not in process.log
    table = "queue" if "queue" in command.split()[0] else "apikey"
    assert server.rows(f"select 1 from queues_{table} where name in ('orders', 'desk')") == [(1,)]


def test_a_form_of_the_admin_is_answered_and_the_next_page_says_that_the_standby_lacks_the_change(
    server: Server, tmp_path: Path
) -> None:
    environment = {
        "DATABASE_URL": url(server), "DATA_DIR": tmp_path, "ALLOWED_HOSTS": "testserver",
        "DJANGO_SETTINGS_MODULE": "brokersite.settings", **SHORT,
    }  # fmt: skip
    status, lines, log = Process(sys.executable, "-c", dedent(ADD_A_ROUTE), environment=environment).finish()
    assert status == 0, log
    assert lines[-1].startswith("302 "), lines
    assert f"The change {UNCONFIRMED}" in lines[-1]
    assert server.rows("select source, target from queues_route") == [("topic:a", "topic:b")]
