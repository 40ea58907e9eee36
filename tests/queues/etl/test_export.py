"""The output: every finished message once, whatever was open, late, oddly named or cut off."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone
from msgpack import packb  # type: ignore[import-untyped]

from queues.api import publish
from queues.engine.statements import statement
from queues.errors import BrokerError
from queues.etl.errors import EtlError, OutputBusy, RowsMissing
from queues.etl.job import schema
from queues.etl.job.continuity import begin
from queues.etl.job.database import JobConnection
from queues.etl.job.files import Files
from queues.etl.job.ledger import ExportState
from queues.etl.job.writing import Writer
from queues.models import ArchivedMessage
from queues.operations.messages import remove_messages
from queues.operations.queues import QueueExists, create_queue
from tests.hostile import values
from tests.queues.etl.conftest import Etl, ago, config, open_transaction
from tests.queues.segments import Range, Segment

pytestmark = pytest.mark.timeout(300)

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


class Killed(BaseException):
    """The job died here."""


def die(*args: Any, **kwargs: Any) -> None:
    raise Killed


def test_each_message_is_exported_once_however_long_its_transaction_was_open(etl: Etl) -> None:
    etl.finish(1, 2)
    with open_transaction() as early, open_transaction() as never:
        etl.finish(10, on=early)
        etl.finish(11, on=never)
        etl.finish(3)
        assert etl.export()["tables"]["messages"]["rows_out"] == 3
        assert etl.ids() == [1, 2, 3]
        with open_transaction() as late:
            etl.finish(4)
            etl.finish(12, on=late)
            with late.transaction():  # a savepoint's rows are its transaction's
                etl.finish(13, on=late)
            with late.transaction(force_rollback=True):
                etl.finish(14, on=late)
            assert etl.export()["window_from"] != ""
            assert etl.ids() == [1, 2, 3, 4]
            early.commit()
            late.commit()
        etl.finish(5)
        assert etl.export()["tables"]["messages"]["rows_out"] == 4
        assert etl.ids() == [1, 2, 3, 4, 5, 10, 12, 13]
    assert etl.export()["tables"]["messages"]["rows_out"] == 0
    assert etl.ids() == [1, 2, 3, 4, 5, 10, 12, 13]


def test_messages_of_segments_are_exported_as_if_they_were_rows(etl: Etl, tmp_path: Path) -> None:
    queues = [etl.queue(name) for name in ("orders", "invoices")]
    ((key,),) = etl.sql(
        "insert into queues_apikey (name, digest, hint, protocols, publish, consume, manage)"
        " values ('worker', 'x', '', '{}', '{}', '{}', '{}') returning id"
    )
    at = datetime(2026, 3, 4, 23, 59, 59, 999999, UTC)
    ranges = [Range(0, 3, key, at), Range(5, 5, None, None), Range(7, 9, key + 1, at + timedelta(seconds=1))]
    segments = [
        Segment(4096, queues[0], range(10), ranges, at, at, key),
        Segment(8192, queues[1], [2**31 - 1], [Range(0, 0, key, at)], at, at + timedelta(seconds=1), None, 3),
        Segment(12288, queues[1] + 1, [1, 2], [Range(1, 1, None, at)], at, at, key + 1),
    ]
    expected = []
    for output, stored in ("rows", [row for one in segments for row in one.messages()]), ("segments", segments):
        etl.sql("delete from queues_archive")
        for one in stored:
            one.store()
        etl.output = tmp_path / output
        for options in {"bodies": "json", "body_schema": "a int"}, {"bodies": "raw"}, {}:
            etl.output = tmp_path / output / str(len(options))
            assert etl.export(**options)["tables"]["messages"]["rows_out"] == 10
            expected.append(sorted(etl.rows(), key=lambda row: row["id"]))
    assert expected[:3] == expected[3:]
    assert [row["id"] for row in expected[0]] == [4096, 4097, 4098, 4099, 4101, 4103, 4104, 4105, 8192, 12289]
    assert {row["consumer"] for row in expected[0]} == {"worker", None}


def test_segments_belong_to_the_window_of_their_transaction(etl: Etl) -> None:
    queue, at = etl.queue("orders"), ago(hours=1)

    def store(first: int) -> None:
        Segment(first, queue, [1, 2, 3], [Range(0, 2, None, None)], at, at).store()

    etl.finish(1)
    assert etl.export()["tables"]["messages"]["rows_out"] == 1
    store(4096)
    etl.finish(2)
    assert etl.export()["tables"]["messages"]["rows_out"] == 4
    store(8192)
    assert etl.export()["tables"]["messages"]["rows_out"] == 3
    assert etl.export()["tables"]["messages"]["rows_out"] == 0
    assert etl.ids() == [1, 2, 4096, 4097, 4098, 8192, 8193, 8194]


def test_rows_from_before_the_archive_knew_of_transactions_are_exported_by_the_first_run(etl: Etl) -> None:
    etl.finish(1, 2, xid=0)
    etl.export()
    etl.export()
    assert etl.ids() == [1, 2]


def test_every_statement_that_archives_gives_its_transaction(etl: Etl) -> None:
    queue = etl.queue("orders")
    given = {
        "ids": "{1,2}", "delivered": "{1,1}", "consumer": None, "consumers": None, "keep": 1, "keeps": None,
        "job": False, "jobs": None, "results": None, "archive": True, "whole": False, "audited": False, "outcome": 4,
        "by": "", "node": 1, "queue": queue, "count": 5, "limit": 5, "since": "-infinity", "skip": "{}",
    }  # fmt: skip
    names = ["settle", "remove", "drop_oldest", "expire"]
    for name in names:
        with etl.connection.transaction():
            etl.sql(
                "insert into queues_message (id, queue_id, state, payload, expires_at)"
                " values (1, %s, 0, 'x', now()), (2, %s, 0, 'y', now())", queue, queue,
            )  # fmt: skip
            (here,) = etl.sql("select pg_current_xact_id()::text::bigint")[0]
            etl.connection.execute(statement(name), given)
            assert etl.sql("select distinct xid from queues_archive where xid = %s", here) == [(here,)], name
    assert etl.sql("select count(*), count(distinct xid) from queues_archive") == [(2 * len(names), len(names))]


def test_the_admins_own_rows_have_a_transaction_too(etl: Etl) -> None:
    now = timezone.now()
    ArchivedMessage.objects.create(
        id=5, queue_id=etl.queue("orders"), outcome=0, attempts=0, published_at=now, finished_at=now, size=1
    )
    ((xid,),) = etl.sql("select xid from queues_archive")
    assert xid > 0


def test_a_message_is_where_its_day_and_queue_say_with_every_column(etl: Etl) -> None:
    finished = datetime(2026, 11, 20, 23, 59, 59, 999_999, tzinfo=UTC)
    published, delivered = finished - timedelta(seconds=2), finished - timedelta(seconds=1)
    etl.sql(
        "insert into queues_apikey (name, digest, hint, protocols, publish, consume, manage)"
        " values ('shop', 'd', 'h', '{}', '{}', '{}', '{}')"
    )
    ((key,),) = etl.sql("select id from queues_apikey")
    etl.finish(
        77, outcome=1, attempts=2, producer_id=key, consumer_id=999, published_at=published, delivered_at=delivered,
        finished_at=finished, size=9, key="k", headers=json.dumps({"a": 1}), content=2, job=True,
    )  # fmt: skip
    etl.export()
    number = etl.queue("orders")
    assert etl.files() == [f"messages/dt=2026-11-20/queue=orders/run-000001-{number}-00000-000.parquet"]
    (row,) = etl.rows()
    assert str(row.pop("dt")) == "2026-11-20"
    assert row == {
        "id": 77, "queue_name": "orders", "queue_id": etl.queue("orders"), "outcome": "expired", "attempts": 2,
        "producer": "shop", "consumer": None, "producer_id": key, "consumer_id": 999,
        "published_at": published.replace(tzinfo=None), "delivered_at": delivered.replace(tzinfo=None),
        "finished_at": finished.replace(tzinfo=None), "due_at": None, "size": 9, "key": "k", "headers": '{"a": 1}',
        "content": "application/json", "job": True, "body": None, "body_json": None, "result": None,
        "result_json": None, "queue": "orders",
    }  # fmt: skip
    told = json.loads((etl.output / "_schema.json").read_text())
    columns = told["tables"]["messages"]["columns"]
    assert [column["name"] for column in columns] == [name for name, *_ in schema.MESSAGES]


ODD = [
    "a/b=c %d", "007", "12", "2026-11-22", "приём", "..", "__HIVE_DEFAULT_PARTITION__", "x" * 255, "я" * 255, "#?&+'\"",
]  # fmt: skip


def test_queues_of_any_name_come_back_under_their_names(etl: Etl) -> None:
    for number, name in enumerate(ODD):
        etl.finish(number, queue=name)
    gone = etl.queue("gone")
    etl.finish(100, queue="gone")
    etl.sql("delete from queues_queue where id = %s", gone)
    etl.export()
    rows = {row["id"]: row for row in etl.rows()}
    assert {id: row["queue_name"] for id, row in rows.items()} == {**dict(enumerate(ODD)), 100: None}
    assert rows[100]["queue"] == f"_deleted-{gone}"
    for number, name in enumerate(ODD):
        if len(name) < 200:
            assert rows[number]["queue"] == name


def test_a_deleted_queue_that_was_exported_before_keeps_its_name(etl: Etl) -> None:
    etl.finish(1, queue="gone")
    etl.export()
    etl.finish(2, queue="gone")
    etl.sql("delete from queues_queue")
    etl.export()
    assert sorted((row["id"], row["queue_name"]) for row in etl.rows()) == [(1, "gone"), (2, "gone")]


def test_late_rows_are_counted_and_not_lost(etl: Etl) -> None:
    etl.finish(1)
    assert etl.export()["late_rows"] == 0
    etl.finish(2, 3, finished_at=ago(days=2))
    etl.finish(4)
    assert etl.export()["late_rows"] == 2
    assert etl.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize("footers", [0, 200])
def test_the_record_has_the_hours_of_all_rows(etl: Etl, monkeypatch: pytest.MonkeyPatch, footers: int) -> None:
    monkeypatch.setattr("queues.etl.job.writing.FOOTERS", footers)
    hour = datetime(2026, 11, 20, 5, tzinfo=UTC)
    etl.finish(1, 2, finished_at=hour + timedelta(hours=1) - timedelta(microseconds=1))
    etl.finish(3, finished_at=hour, queue="other")
    etl.finish(4, finished_at=hour + timedelta(hours=3), queue="other")
    etl.finish(5, finished_at=hour + timedelta(days=1))
    assert etl.export()["tables"]["messages"]["rows_out"] == 5
    record = json.loads((etl.output / "_runs" / "000001.json").read_text())
    assert record["hours"] == [(hour + timedelta(hours=n)).isoformat() for n in (0, 3, 24)]


LARGE = '{"large": "' + 40_000 * "x" + '"}'
BODIES = {
    1: (b'{"order": 7, "total": 1.5}', 2), 2: (packb({"order": 8, "raw": b"\x00"}), 1), 3: (b"\xff\xfe", None),
    4: (b'{"order": 9}', None), 5: (b"{broken", 2), 6: (b"\xc1", 1), 7: (None, 2),
    8: (LARGE.encode(), 2),
}  # fmt: skip


def test_bodies_are_left_out_or_bytes_or_json_with_columns(etl: Etl) -> None:
    for id, (body, content) in BODIES.items():
        etl.finish(id, payload=body, content=content, result=packb([id]))
    etl.export(bodies="json", body_schema="`order` bigint, total double")
    rows = {row["id"]: row for row in etl.rows()}
    assert {id: row["body_json"] for id, row in rows.items()} == {
        1: '{"order": 7, "total": 1.5}', 2: '{"order":8,"raw":"AA=="}', 3: None, 4: '{"order": 9}', 5: None, 6: None,
        7: None, 8: LARGE,
    }  # fmt: skip
    assert rows[1]["data"].asDict() == {"order": 7, "total": 1.5}
    assert rows[2]["data"].asDict() == {"order": 8, "total": None}
    assert rows[3]["data"] is None
    assert (rows[5]["result_json"], rows[5]["body"], rows[5]["result"]) == ("[5]", None, None)
    raw = Etl(etl.spark, etl.output.with_name("raw"), etl.connection)
    raw.export(bodies="raw")
    assert {row["id"]: row["body"] and bytes(row["body"]) for row in raw.rows()} == {
        id: body for id, (body, _) in BODIES.items()
    }  # fmt: skip


def test_since_adds_what_the_output_lacks_and_nothing_twice(etl: Etl) -> None:
    earlier = ago(days=3)
    etl.finish(1, 2, finished_at=earlier)
    etl.finish(3)
    etl.export(since=ago(days=1).isoformat())
    assert etl.ids() == [3]
    etl.finish(4)
    etl.export(since=ago(days=9).isoformat())
    assert etl.ids() == [1, 2, 3, 4]
    etl.export(since=ago(days=9).isoformat())
    assert etl.ids() == [1, 2, 3, 4]
    for path in etl.files():
        if f"dt={earlier:%Y-%m-%d}" in path:
            (etl.output / path).unlink()
    assert etl.ids() == [3, 4]
    etl.export(since=ago(days=9).isoformat())
    assert etl.ids() == [1, 2, 3, 4]


def test_a_database_that_was_set_back_is_read_again_without_repeating_a_row(etl: Etl) -> None:
    etl.finish(1, 2)
    etl.export()
    etl.sql("update queues_etlwitness set token = gen_random_uuid()")
    etl.sql("update queues_archivedmessage set xid = 9000000000 where id = 2")  # as if a dump had brought it
    etl.finish(3, xid=9_000_000_001)
    Segment(4096, etl.queue("orders"), [1, 2, 3], [Range(0, 0, None, None), Range(2, 2, 1, None)], NOW, NOW).store()
    etl.sql("update queues_archivedsegment set xid = 9000000002")
    etl.export()
    assert "set back to an earlier state" in etl.warnings[0]
    assert "4 rows came with a dump" in etl.warnings[0]
    assert etl.ids() == [1, 2, 3, 4096, 4098]
    etl.finish(4)
    etl.export()
    assert etl.warnings == []
    assert etl.ids() == [1, 2, 3, 4, 4096, 4098]


def test_an_output_without_its_records_is_not_filled_twice(etl: Etl) -> None:
    etl.finish(1)
    etl.export()
    for path in (etl.output / "_runs").iterdir():
        path.unlink()
    etl.finish(2)
    etl.export()
    assert "no record of runs" in etl.warnings[0]
    assert etl.ids() == [1, 2]


def test_a_gap_longer_than_the_archive_is_told(etl: Etl) -> None:
    with etl.database() as database:
        first = begin(database, database.snapshot(), None, "x", None, 30)
        token = str(uuid4())
        database.note("x", token)
        moment = first.end
        last = ExportState(
            snapshot=moment.snapshot, at=ago(days=40).isoformat(), system=moment.system, database=moment.database,
            token=token,
        )  # fmt: skip
        assert "The last run was 40 days ago" in begin(database, database.snapshot(), last, "x", None, 30).warning
        assert begin(database, database.snapshot(), last, "x", None, 60).warning == ""


def test_live_rows_are_replaced_by_each_run(etl: Etl) -> None:
    queue = etl.queue("orders")
    etl.sql(
        "insert into queues_message (id, queue_id, state, payload, error, dead_at, origin_id) values"
        " (1, %s, 0, 'abc', null, null, null), (2, %s, 3, 'x', 'it broke', now(), 40)", queue, queue,
    )  # fmt: skip
    etl.export()
    rows = {row["id"]: row for row in etl.rows("live")}
    assert {id: (row["state"], row["size"], row["dead_reason"]) for id, row in rows.items()} == {
        1: ("ready", 3, None), 40: ("dead", 1, "it broke"),
    }  # fmt: skip
    assert rows[40]["dead_queue"] == "orders"
    etl.sql("delete from queues_message where id = 1")
    etl.export()
    assert [row["id"] for row in etl.rows("live")] == [40]


def test_live_messages_that_are_stored_together_are_there_once_each(
    etl: Etl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.etl.job.database.ROWS_PER_QUERY", 3)
    queue = etl.queue("orders")
    etl.sql(
        "insert into queues_segment (first, queue_id, node_id, count, bodies) values"
        " (4096, %(queue)s, null, 5, '{a,bb,c,d,e}'), (8192, %(queue)s, 1, 4, '{f,g,h,i}'),"
        " (12288, %(queue)s, null, 2, '{j,kkk}')".replace("%(queue)s", str(queue))
    )  # fmt: skip
    etl.sql("insert into queues_segmentsettlement (first, low, high, kept) values (8192, 1, 2, true)")
    etl.sql("insert into queues_message (id, queue_id, state, payload) values (4200, %s, 0, 'x')", queue)
    etl.export()
    rows = [(row["id"], row["state"], row["size"]) for row in etl.rows("live")]
    assert sorted(rows) == [
        (4096, "ready", 1), (4097, "ready", 2), *((4096 + n, "ready", 1) for n in (2, 3, 4)), (4200, "ready", 1),
        (8192, "leased", 1), (8195, "leased", 1), (12288, "ready", 1), (12289, "ready", 3),
    ]  # fmt: skip


@pytest.mark.parametrize("where", ["reading", "writing", "moving", "recording"])
def test_a_run_that_is_killed_anywhere_costs_no_row_and_repeats_none(
    etl: Etl, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    etl.finish(1, 2)
    etl.finish(3, queue="other")
    with monkeypatch.context() as patched:
        if where == "reading":
            patched.setattr(JobConnection, "archive_partitions", die)
        elif where == "writing":
            patched.setattr(Writer, "write_live", die)
        else:
            _die_at(patched, *{"moving": ("move", 4), "recording": ("write", 4)}[where])
        with pytest.raises(Killed):
            etl.export()
    etl.finish(4)
    etl.export()
    assert etl.ids() == [1, 2, 3, 4]


def _die_at(patched: pytest.MonkeyPatch, name: str, call: int) -> None:
    """Die instead of the n-th call of a method of files."""
    real = getattr(Files, name)
    calls = iter(range(1, 1000))

    def counting(self: Files, *args: Any) -> Any:
        if next(calls) >= call:
            raise Killed
        return real(self, *args)

    patched.setattr(Files, name, counting)


def test_rows_that_got_lost_on_the_way_fail_the_run(etl: Etl, monkeypatch: pytest.MonkeyPatch) -> None:
    etl.finish(1, 2)
    real = Writer._count

    def losing(self: Writer, staged: str, time: str, written: Any) -> None:
        for path, _ in self.files.walk(staged):
            self.files.remove(f"{staged}/{path}")
        real(self, staged, time, written)

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "_count", losing)
        with pytest.raises(RowsMissing, match="2 rows were read, 0 are in the files"):
            etl.export()
    etl.export()
    assert etl.ids() == [1, 2]


def test_only_one_run_at_a_time_writes_to_an_output(etl: Etl, tmp_path: Path) -> None:
    with etl.database():
        with pytest.raises(OutputBusy), etl.database(patience=0.0):
            pass
        other = JobConnection(config(tmp_path).database)
        other.lock(str(tmp_path / "elsewhere"), patience=0.0)
        other.close()


def test_a_run_waits_for_one_that_is_about_to_end(etl: Etl) -> None:
    waiting = JobConnection(config(etl.output).database)
    with etl.database() as ending:
        timer = threading.Timer(0.5, ending.close)
        timer.start()
        waiting.lock(str(etl.output), patience=60.0)
        timer.join()
    waiting.close()


def test_an_output_that_cannot_be_written_is_told_by_its_name(etl: Etl, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(EtlError, match="out"):
        etl.export()


def test_an_output_with_checksums_beside_its_files_is_continued_and_loses_them(etl: Etl) -> None:
    etl.finish(1)
    etl.export()
    for path in [path for path in etl.output.rglob("*") if path.is_file()]:
        path.with_name(f".{path.name}.crc").write_bytes(b"crc\0\0\0\2\0wrong")
    etl.finish(2)
    etl.export(bodies="json", body_schema="a int")  # so that _schema.json is written in the place of another
    assert list(etl.output.rglob("*.crc")) == []
    assert etl.ids() == [1, 2]


def test_what_a_publisher_may_name_is_exported_once_as_it_is_and_the_rest_is_refused_in_words(etl: Etl) -> None:
    """NUL, halves of surrogate pairs, NaN, infinities, extremes: in keys, headers, bodies and names of queues."""
    wanted: dict[int, tuple[str, str | None]] = {}
    for n, value in enumerate([*values.ODD, *values.UNSTORABLE, *values.NUMBERS]):
        text = value if isinstance(value, str) else f"number {n}"
        for name, key, headers in (
            (f"of {text}", None, None), ("kept", f"{n}{text}", None), ("kept", None, {"value": value, text: n}),
        ):  # fmt: skip
            try:
                with suppress(QueueExists):
                    create_queue(name, retention="full")
                body = json.dumps(value).encode()
                id = publish(name, body, key=key, headers=headers, content_type="application/json")
            except BrokerError:
                continue
            assert id is not None
            wanted[id] = name, key
            assert remove_messages(name, [id]) == 1
    assert len(wanted) > 2 * len(values.ODD)
    etl.run(bodies="json")
    found = {row["id"]: row for row in etl.rows()}
    assert len(found) == len(etl.rows())
    assert {id: (row["queue_name"], row["key"]) for id, row in found.items()} == wanted
    assert etl.export(bodies="json")["tables"]["messages"]["rows_out"] == 0


MARKS: list[Any] = [
    "yesterday", 5, None, [], {}, {"at": None}, {"at": 5}, {"at": "yesterday"}, {"at": "infinity"}, {"at": ""},
    {"at": "2026-13-45T25:61:61+00:00"}, {"at": "+294276-12-31T00:00:00+00:00"}, {"at": {"a": 1}}, {"at": "epoch"},
    {"at": "9999-12-31T23:59:59+00:00", "queue": "orders", "error": "forged"}, {"queue": ["orders"], "error": {}},
    {"at": "2026-11-20T00:00:00+00:00", "queue": "q" * 300},
]  # fmt: skip
FORGED: list[Any] = [
    *({"dead-letter": mark} for mark in MARKS), [], [1], "text", 5, {"a": json.loads("[" * 900 + "]" * 900)},
    {"n": 10**400, "\u2028": "\U0001f600"},
]  # fmt: skip
UNREADABLE: list[tuple[bytes, int | None]] = [
    (packb(float("nan")), 1), (packb({"a": [float("inf"), "NaN"]}), 1), (packb({b"\xff": 1}), 1), (b"\xc1", 1),
    (b"\xdd\xff\xff\xff\xff", 1), (b"\x91" * 2000, 1), (b"[" * 5000 + b"]" * 5000, 2), (b'{"a": 1e999}', 2),
    (b'{"a": ' + b"9" * 5000 + b"}", 2), (b"NaN", 2), (b'{"a": "\\ud800"}', 2), (b'{"a": "\\u0000"}', 2),
    (b"\xff\0", 2),
    (b'{"a": 99999999999999999999}', 2), (b'{"a": "x", "a": 1}', 2), (b"", 2), (b"text", 4), (b"text", 99),
]  # fmt: skip


def test_nothing_that_a_client_sets_stops_an_export_or_counts_for_another_queue(etl: Etl) -> None:
    live = etl.queue("live")
    for number, headers in enumerate(FORGED):
        etl.sql(
            "insert into queues_message (id, queue_id, state, payload, headers) values (%s, %s, 0, 'x', %s)",
            1000 + number, live, json.dumps(headers),
        )  # fmt: skip
        etl.finish(2000 + number, queue="done", headers=json.dumps(headers), key="\u2028 \U0001f600")
    for number, (body, content) in enumerate(UNREADABLE):
        etl.finish(3000 + number, queue="done", payload=body, content=content, size=2**31 - 1, attempts=32767)
    etl.finish(4000, queue="done", due_at=datetime(9999, 12, 31, tzinfo=UTC))
    etl.run(bodies="json", body_schema="a int")
    rows = {row["id"]: row for row in etl.rows()}
    assert len(rows) == len(FORGED) + len(UNREADABLE) + 1
    assert rows[3000]["body_json"] == "null"
    assert json.loads(rows[3001]["body_json"]) == {"a": [None, "NaN"]}
    assert [row["dead_at"] for row in etl.rows("live") if row["id"] < 1000 + FORGED.index([])].count(None) >= 16
    counted = etl.sql("select queue, sum(dead_letters) from queues_rollup where dead_letters > 0 group by 1")
    assert counted == []
    assert etl.sql("select count(*) from queues_rollup where queue = 'orders'") == [(0,)]
