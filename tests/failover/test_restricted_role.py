"""The role of docs/operations.md, which owns nothing: everything runs with it, and what it may not do is told in a
line."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import psycopg
import pytest

from brokersite.environment import CHECKOUT
from brokersite.rigs.torture.database import KEY
from tests.failover.conftest import MakeServer
from tests.failover.servers import Server, is_ready, page, wait_ready, wait_unready
from tests.lengths import lengths
from tests.process import Process
from tests.queues.test_unusable_databases import HYDRA, LISTENERS, assert_refused, refusals
from tests.waiting import wait_until
from tests.wire.broker import Blip, Broker, make_url
from wire.blipmq import codec as blipmq

pytestmark = pytest.mark.timeout(900)

PAGE = CHECKOUT / "docs" / "operations.md"
(GRANTS,) = re.findall(r"^```sql\n(create role .*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
((ROLE, PASSWORD),) = re.findall(r"create role (\w+) login password '(\w+)'", GRANTS)
STATUS = ("--status", "127.0.0.1:0")
#: Tables that take turns, in which messages and counts stand.
TURNS = [f"queues_{kind}_{turn}" for kind in ("segment", "queuetally") for turn in (1, 2, 3)]
#: Tables with a partition for each day.
DAILY = ("archive", "archivedsegment", "audit")
DAYS = 10


class Tour(Process):
    """Everything else, which takes long on a busy machine."""

    patience = 600


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """A migrated server whose tables are the role's that migrates, and the page's grants."""
    made = make_server()
    made.start()
    with made.connect() as connection:
        connection.execute(GRANTS.encode())
    return made


def restricted(server: Server) -> dict[str, Any]:
    """The parameters to connect with the role that owns nothing."""
    return server.parameters | {"user": ROLE, "password": PASSWORD}


def url(server: Server) -> str:
    return make_url(restricted(server))


def files(server: Server) -> list[int]:
    """The files of the tables that take turns: others after each truncation."""
    query = "select pg_relation_filenode(name::regclass) from unnest(%s::text[]) name"
    return [file for (file,) in server.rows(query, TURNS)]


def partitions(server: Server) -> set[str]:
    """Those of days, in a schema where nothing is the restricted role's."""
    rows = server.rows(
        "select relname, pg_get_userbyid(relowner) from pg_class where relnamespace = 'public'::regnamespace"
    )
    assert ROLE not in {owner for _, owner in rows}
    return {name for name, _ in rows if re.fullmatch(rf"queues_({'|'.join(DAILY)})_\d{{8}}", name)}


def of_day(days: int) -> set[str]:
    """The partitions of a day, counted from today."""
    return {f"queues_{kind}_{datetime.now(UTC) + timedelta(days=days):%Y%m%d}" for kind in DAILY}


@pytest.mark.parametrize("pages", lengths(short="", long="pages"))
def test_with_the_pages_grants_a_role_that_owns_nothing_runs_listeners_upkeep_commands_celery_exports_and_all_pages(
    server: Server, tmp_path: Path, pages: str
) -> None:
    old, coming = of_day(-DAYS - 2), of_day(0) | of_day(3)
    for kind in ("archive", "audit"):
        server.rows(f"select queues_make_{kind}_partitions(current_date - {DAYS + 2}, 1)")
    server.rows(f"drop table {', '.join(coming)}")
    days = {"BROKER_ARCHIVE_DAYS": DAYS, "BROKER_AUDIT_DAYS": DAYS, "BROKER_AUDIT_ANCHOR_INTERVAL": 1}
    with Broker(url(server), *STATUS, BROKER_ROTATION_SECONDS=1, **days) as broker:
        before = files(server)
        with Blip(broker.blipmq, KEY) as client:
            subscription = client.subscribe(b"prices")

            def all_were_emptied() -> bool:
                client.publish(b"prices", b"1")
                assert client.consume(subscription, 1) == [b"1"]
                return all(now != then for now, then in zip(files(server), before, strict=True))

            wait_until(all_were_emptied, lambda: f"truncation of {TURNS}: {broker.log}")
        wait_until(lambda: coming <= partitions(server) and not old & partitions(server), lambda: broker.log)
        assert is_ready(broker), page(broker, "/readyz")
    assert "failed" not in broker.log
    tour = Tour(
        sys.executable, "-m", "tests.failover.tour", str(tmp_path), pages,
        environment={
            "DATABASE_URL": url(server), "DATA_DIR": tmp_path / "data", "ALLOWED_HOSTS": "testserver",
            "DJANGO_SETTINGS_MODULE": "brokersite.settings", "BROKER_ADMIN_BUSY_PERCENT": 100,
        },
    )  # fmt: skip
    status, failed, log = tour.finish()
    assert (status, [line for line in failed if line]) == (0, []), log


#: Statements that only the owner may run.
FORBIDDEN = (
    "create table mine ()", "alter table queues_queue add mine integer", "drop table queues_archive_default",
    "truncate queues_message", "truncate queues_audit", "insert into django_migrations (app, name) values ('a', 'b')",
    "delete from queues_audit", "update queues_audit_default set sender = ''",
)  # fmt: skip


def test_the_role_may_not_change_tables_nor_rewrite_audit_chains_and_sees_who_holds_locks(server: Server) -> None:
    with server.connect() as owner, psycopg.connect(**restricted(server), autocommit=True) as connection:
        for statement in FORBIDDEN:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
        with owner.transaction():
            query = "select xact_start is not null from pg_stat_activity where pid = %s"
            assert connection.execute(query, [owner.info.backend_pid]).fetchone() == (True,)


#: A command for each way in which commands use the database, and one of Django's own.
COMMANDS = (
    "queue list", "queue create orders", "apikey list", "top --count 1", f"runwire {LISTENERS}", HYDRA,
    "createsuperuser --noinput --username root --email a@b.example", "migrate queues 0004",
)  # fmt: skip


def test_a_command_whose_role_lacks_a_right_says_so_in_a_line(server: Server) -> None:
    server.rows(f"revoke all on all tables in schema public from {ROLE}")
    server.rows(f"grant select on django_migrations, django_content_type to {ROLE}")
    assert_refused(refusals(restricted(server), *COMMANDS), "The database's role lacks a right: ")


def test_a_right_that_is_taken_from_a_listener_costs_no_message_and_readyz_names_the_table(server: Server) -> None:
    with Broker(url(server), *STATUS) as broker, Blip(broker.blipmq, KEY) as client:
        subscription = client.subscribe(b"prices")
        for kind in ("segment", "message"):
            server.rows(f"revoke insert on queues_{kind} from {ROLE}")
        client.send(blipmq.encode_publish(8, 1, b"prices", b"1"))
        wait_unready(broker, "permission denied for table queues_")
        for kind in ("segment", "message"):
            server.rows(f"grant insert on queues_{kind} to {ROLE}")
        assert client.ask() == []
        assert client.consume(subscription, 1) == [b"1"]
        wait_ready(broker)


def test_a_page_whose_role_lacks_a_right_names_the_table(server: Server, tmp_path: Path) -> None:
    server.rows(f"revoke select on queues_route from {ROLE}")
    script = """
        import django
        django.setup()
        from django.contrib.auth import get_user_model
        from django.test import Client
        client = Client()
        client.force_login(get_user_model().objects.create_superuser("root"))
        answer = client.get("/admin/queues/route/")
        print(answer.status_code, answer.content.decode())
    """
    environment = {
        "DATABASE_URL": url(server), "DATA_DIR": tmp_path, "ALLOWED_HOSTS": "testserver",
        "DJANGO_SETTINGS_MODULE": "brokersite.settings",
    }  # fmt: skip
    status, lines, log = Process(sys.executable, "-c", dedent(script), environment=environment).finish()
    assert status == 0, log
    assert lines[-1].startswith("503 The page cannot be shown: the database's role lacks a right: permission denied")
    assert "queues_route" in lines[-1]
