"""ETL runs, schedules and charts in the operators' pages."""

from __future__ import annotations

import json
import re
import socket
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as project
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.admin.rollup import span
from queues.etl import runs, schedules
from queues.etl.options import RunOptions
from queues.models import AuditJournalEntry, EtlRun, EtlSchedule, EtlState, Rollup
from tests.queues.etl.conftest import hourly

pytestmark = pytest.mark.django_db

RUNS = reverse("admin:queues_etlrun_changelist")
SCHEDULES = reverse("admin:queues_etlschedule_changelist")
CHARTS = reverse("admin:queues_rollup_changelist")


@pytest.fixture(autouse=True)
def published(settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The runs whose tasks were published, none of which leaves this process."""
    settings.ETL_OUTPUT = str(tmp_path)
    numbers: list[int] = []
    monkeypatch.setattr(schedules, "publish_task", lambda run: numbers.append(run.pk))
    return numbers


def text_of(response: Any) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


def page(run: EtlRun, view: str = "change") -> str:
    return reverse(f"admin:queues_etlrun_{view}", args=[run.pk])


def act(client: Client, address: str, action: str, *rows: EtlRun | EtlSchedule) -> str:
    data = {"action": action, "_selected_action": [str(row.pk) for row in rows]}
    return text_of(client.post(address, data, follow=True))


def make_run(state: EtlState = EtlState.SUCCEEDED, **fields: Any) -> EtlRun:
    now = timezone.now()
    if state != EtlState.QUEUED:
        fields = {"started_at": now - timedelta(seconds=90), "heartbeat_at": now, "host": "elsewhere", **fields}
    if state not in (EtlState.QUEUED, EtlState.RUNNING):
        fields = {"ended_at": now, **fields}
    given = {"trigger": "alice", "output": "/somewhere", "options": RunOptions().dump(), "pid": 1, **fields}
    return EtlRun.objects.create(state=state, **given)


def succeeded() -> EtlRun:
    table = {"rows_out": 1_234, "rows_in": 1_250, "bytes": 99, "files": 1}
    figures = {
        "tables": {"messages": table, "audit": {**table, "rows_out": 7}},
        "seconds": {"starting Spark": 3.2, "messages": 61.5}, "audit": {"peerbus": {"ok": True, "rows": 12}},
    }  # fmt: skip
    return make_run(
        rows_in=2_500, rows_out=1_241, bytes=5_000_000, figures=figures,
        window_from="700:705:701", window_to="760:765:",
    )  # fmt: skip


def roll_up(queue: str = "orders", hours_ago: int = 1, **figures: Any) -> None:
    [hour] = span(timezone.now() - timedelta(hours=hours_ago), 1)
    Rollup.objects.create(queue=queue, hour=hour, **{"acknowledged": 10, **figures})


def fields(**changes: object) -> dict[str, object]:
    return {"name": "hourly", "cron": "0 * * * *", "timezone": "Europe/Berlin", "enabled": "on", "bodies": "none",
            "body_schema": "", "verify": "on", **changes}  # fmt: skip


def recorded() -> list[tuple[str, str, str]]:
    """The operators' journal: event, record, detail."""
    rows = AuditJournalEntry.objects.filter(chain="operators").order_by("pk")
    return list(rows.values_list("event", "record_id", "recipient"))


class TestRuns:
    def test_the_list_tells_how_each_run_went(self, admin_client: Client) -> None:
        run = succeeded()
        make_run(EtlState.FAILED, error="ETL_OUTPUT cannot be written: no space is left")
        assert "1,241 (messages 1,234, audit 7)" in text_of(admin_client.get(page(run)))
        shown = text_of(admin_client.get(RUNS))
        assert "2,500 → 1,241" in shown
        assert "700 to 765" in shown
        assert "4.8 MB" in shown
        assert "1.5 min" in shown
        assert "no space is left" in shown

    def test_the_list_loads_itself_again_only_while_a_run_lasts(self, admin_client: Client) -> None:
        run = make_run(EtlState.RUNNING, stage="messages", done=30, total=120)
        answer = admin_client.get(RUNS)
        assert "data-every" in answer.content.decode()
        assert 'value="25"' in answer.content.decode()
        assert "messages: 30 of about 120 rows" in text_of(answer)
        EtlRun.objects.filter(pk=run.pk).update(state=EtlState.SUCCEEDED, ended_at=timezone.now())
        assert "data-every" not in admin_client.get(RUNS).content.decode()

    @pytest.mark.parametrize("rows", [1, 6])
    def test_the_list_takes_as_many_queries_for_many_runs_as_for_one(
        self, admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, rows: int
    ) -> None:
        for _ in range(rows):
            succeeded()
        with django_assert_num_queries(2 + 3):  # session and user; the number, the page, the reasons of failures
            admin_client.get(RUNS)

    def test_a_page_takes_as_many_queries_whatever_there_is_to_draw(
        self, admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        run = succeeded()
        for n in range(30):
            roll_up(f"queue {n}", hours_ago=n % 20)
        admin_client.get(page(run))  # content types are remembered from here on
        with django_assert_num_queries(2 + 1 + 2):  # session and user; the run; its hours, and its queues
            admin_client.get(page(run))

    def test_a_running_run_shows_its_stages_and_its_log(self, admin_client: Client) -> None:
        log = project.DATA_DIR / "etl-logs" / "12345.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("".join(f"line {n}\n" for n in range(100)))
        run = make_run(EtlState.RUNNING, stage="audit rows", done=5, total=10, host=socket.gethostname(), log=str(log))
        shown = admin_client.get(page(run)).content.decode()
        assert '<strong class="etl-state">running</strong>' in shown
        assert "live.js" in shown, "it is kept up to date"
        stages = re.findall(r'<tr class="(\w+)"><th scope="row">([\w ]+)</th>\s*<td>([^<]*?)\s*</td>', shown)
        assert ("done", "messages", "done") in stages
        assert ("now", "audit rows", "5 of about 10 rows") in stages
        assert ("waiting", "rollups", "-") in stages
        assert "line 99" in shown
        assert "line 69" not in shown
        log.unlink()
        assert "No such file" in admin_client.get(page(run)).content.decode()
        assert "live.js" not in admin_client.get(page(make_run(EtlState.FAILED))).content.decode()

    def test_no_file_but_a_log_is_ever_shown(self, admin_client: Client, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("the password")
        for path in (str(secret), f"{project.DATA_DIR}/etl-logs/../../{secret}"):
            run = make_run(host=socket.gethostname(), log=path)
            assert "the password" not in text_of(admin_client.get(page(run)))

    def test_a_run_that_stays_queued_asks_for_a_worker(self, admin_client: Client) -> None:
        run = make_run(EtlState.QUEUED)
        assert "Does a Celery worker run?" not in text_of(admin_client.get(page(run)))
        EtlRun.objects.update(queued_at=timezone.now() - timedelta(minutes=2))
        assert "waits for a worker for 2 minutes. Does a Celery worker run?" in text_of(admin_client.get(page(run)))

    def test_the_page_of_a_run_has_charts_with_their_tables(self, admin_client: Client) -> None:
        roll_up(acknowledged=41, settle_p95=0.25)
        answer = admin_client.get(page(succeeded()))
        html = answer.content.decode()
        assert re.findall(r'id="chart-(\w+)"', html) == ["stages", "tables", "messages", "settle", "deliver", "queues"]
        assert "messages 1.02 min" in text_of(answer)
        csv = re.search(r'href="([^"]+format=csv[^"]+chart=messages)"', html)
        assert csv
        figures = admin_client.get(unescape(csv[1])).content.decode().splitlines()
        assert len(figures) == 1 + 24
        assert sum(int(line.split(",")[1]) for line in figures[1:]) == 41, "those of the same hours"
        assert "12 rows" in text_of(answer)

    def test_broken_chains_and_warnings_are_told(self, admin_client: Client) -> None:
        audit = {"peerbus": {"ok": False, "rows": 3, "broken_seq": 2}}
        run = make_run(figures={"audit": audit}, warnings=["Rows 1 to 4 were dropped by retention."])
        shown = text_of(admin_client.get(page(run)))
        assert "peerbus is broken at seq 2" in shown
        assert "dropped by retention" in shown
        assert "1 warnings" in text_of(admin_client.get(RUNS))

    def test_a_run_is_cancelled_from_its_page_and_that_is_recorded(self, admin_client: Client) -> None:
        run = make_run(EtlState.RUNNING)
        assert f"Run {run.pk} ends in a moment" in text_of(
            admin_client.post(page(run, "cancel"), follow=True)
        )
        run.refresh_from_db()
        assert run.cancelling
        assert "cancelling" in text_of(admin_client.get(RUNS))
        assert recorded() == [("cancel", f"etl-run:{run.pk}", "")]

    def test_a_run_that_has_ended_cannot_be_cancelled(self, admin_client: Client) -> None:
        run = succeeded()
        assert f"The run has ended: run {run.pk}" in act(admin_client, RUNS, "cancel", run)
        assert recorded() == []

    def test_a_run_is_done_again_from_its_page(self, admin_client: Client, published: list[int]) -> None:
        run = make_run(EtlState.FAILED, error="so it is", options=RunOptions(bodies="raw").dump())
        answer = admin_client.post(page(run, "again"), follow=True)
        again = EtlRun.objects.latest("pk")
        assert answer.redirect_chain == [(page(again), 302)]
        assert (again.trigger, again.options["bodies"]) == (f"admin, again as run {run.pk}", "raw")
        assert published == [again.pk]
        assert recorded() == [("run", f"etl-run:{again.pk}", f"again as run {run.pk}")]
        busy = admin_client.post(page(run, "again"), follow=True)
        assert f"Could not run {run.pk} again: Another run writes to this output" in text_of(busy)

    def test_a_run_is_started_by_hand_once_it_is_confirmed(self, admin_client: Client, published: list[int]) -> None:
        address = reverse("admin:queues_etlrun_start")
        assert "exports everything that has ended since the last run" in text_of(admin_client.get(address))
        assert published == []
        admin_client.post(address, {"confirmed": "yes"})
        run = EtlRun.objects.get()
        assert (run.trigger, published) == ("admin", [run.pk])
        assert recorded() == [("run", f"etl-run:{run.pk}", "")]
        assert "Another run writes" in text_of(admin_client.post(address, {"confirmed": "yes"}, follow=True))

    @pytest.mark.parametrize("view", ["cancel", "again"])
    def test_looking_does_nothing(self, admin_client: Client, view: str) -> None:
        assert admin_client.get(page(succeeded(), view)).status_code == 405

    @pytest.mark.parametrize("view", ["cancel", "again", "change"])
    def test_a_run_that_is_gone_is_said_to_be(self, admin_client: Client, view: str) -> None:
        run = succeeded()
        address = page(run, view)
        run.delete()
        answer = admin_client.get(address) if view == "change" else admin_client.post(address)
        assert answer.status_code == 302

    def test_a_user_with_view_permission_only_sees_no_buttons_and_is_refused(
        self, client: Client, published: list[int]
    ) -> None:
        user = User.objects.create_user("staff", is_staff=True)
        client.force_login(user)
        run = make_run(EtlState.RUNNING)
        assert client.get(page(run)).status_code == 403
        user.user_permissions.add(Permission.objects.get(codename="view_etlrun"))
        shown = client.get(page(run))
        assert shown.status_code == 200
        assert "formaction" not in shown.content.decode()
        for view in ("cancel", "again"):
            assert client.post(page(run, view)).status_code == 403
        assert client.post(reverse("admin:queues_etlrun_start"), {"confirmed": "yes"}).status_code == 403
        act(client, RUNS, "cancel", run)
        run.refresh_from_db()
        assert (run.cancelling, published) == (False, [])


class TestSchedules:
    def test_a_schedule_is_made_planned_and_recorded(self, admin_client: Client) -> None:
        address = reverse("admin:queues_etlschedule_add")
        assert admin_client.get(address).status_code == 200
        assert admin_client.post(address, fields(cron="30 4 * * *")).status_code == 302
        schedule = EtlSchedule.objects.get()
        shown = text_of(admin_client.get(reverse("admin:queues_etlschedule_change", args=[schedule.pk])))
        assert "At 04:30" in shown
        assert shown.count("04:30 CE") == 6  # the next run, and five ahead
        assert recorded() == [("add", "etl-schedule:hourly", "")]

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"cron": "0 25 * * *"}, "The hour '25' cannot be read"),
            ({"cron": "0 0 30 2 *"}, "It never comes true"),
            ({"timezone": "Europe/Berln"}, "Is Europe/Berlin meant?"),
            ({"bodies": "all"}, "is not one of the available choices"),
            ({"body_schema": "total DOUBLE"}, "Columns are made of JSON bodies only"),
            ({"name": ""}, "This field is required"),
        ],
    )
    def test_errors_are_shown(self, admin_client: Client, changes: dict[str, str], reason: str) -> None:
        answer = admin_client.post(reverse("admin:queues_etlschedule_add"), fields(**changes))
        assert answer.status_code == 200
        assert reason in text_of(answer)
        assert not EtlSchedule.objects.exists()

    def test_a_changed_schedule_is_planned_anew_and_a_disabled_one_not_at_all(self, admin_client: Client) -> None:
        admin_client.post(reverse("admin:queues_etlschedule_add"), fields())
        schedule = EtlSchedule.objects.get()
        address = reverse("admin:queues_etlschedule_change", args=[schedule.pk])
        admin_client.post(address, fields(cron="17 * * * *"))
        schedule.refresh_from_db()
        assert schedule.next_run_at is not None
        assert schedule.next_run_at.minute == 17
        assert "Disabled hourly." in act(admin_client, SCHEDULES, "disable", schedule)
        off = EtlSchedule.objects.get()
        assert not off.enabled
        assert off.next_run_at is None
        assert "none: it is not enabled" in text_of(admin_client.get(address))
        assert "Enabled hourly." in act(admin_client, SCHEDULES, "enable", schedule)
        assert [event for event, *_ in recorded()] == ["add", "change", "disable", "enable"]

    def test_run_now_leads_to_the_run(self, admin_client: Client, published: list[int]) -> None:
        admin_client.post(reverse("admin:queues_etlschedule_add"), fields())
        schedule = EtlSchedule.objects.get()
        shown = act(admin_client, SCHEDULES, "run_now", schedule)
        run = EtlRun.objects.get()
        assert f"Begun hourly as run {run.pk} ." in shown
        assert (run.trigger, published) == ("admin, schedule hourly", [run.pk])
        assert f'<a href="{page(run)}">run {run.pk}</a>: queued' in admin_client.get(SCHEDULES).content.decode()
        assert "Could not run hourly: Another run writes" in act(admin_client, SCHEDULES, "run_now", schedule)

    def test_one_that_is_late_asks_for_a_worker(self, admin_client: Client) -> None:
        admin_client.post(reverse("admin:queues_etlschedule_add"), fields(cron=hourly()))
        assert "Does a Celery worker run" not in text_of(admin_client.get(SCHEDULES))
        EtlSchedule.objects.update(next_run_at=timezone.now() - timedelta(minutes=4, seconds=5))
        assert "4 minutes ago: it is due. Does a Celery worker run" in text_of(admin_client.get(SCHEDULES))

    @pytest.mark.parametrize("rows", [1, 5])
    def test_the_list_takes_as_many_queries_for_many_as_for_one(
        self, admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, rows: int
    ) -> None:
        for n in range(rows):
            EtlSchedule.objects.create(name=f"schedule {n}", cron="0 * * * *", last_run=succeeded())
        with django_assert_num_queries(2 + 2):  # session and user; the number, the page
            admin_client.get(SCHEDULES)


class TestCharts:
    def test_every_chart_can_be_read_as_a_picture_as_words_and_as_a_table(self, admin_client: Client) -> None:
        roll_up(acknowledged=41, expired=2, settle_p50=0.004, settle_p99=1.5)
        roll_up("prices", hours_ago=3, acknowledged=7, dead_letters=1)
        html = admin_client.get(CHARTS).content.decode()
        plots = re.findall(r'<div class="plot" data-words="([^"]+)"></div>\s*<script[^>]*>(.*?)</script>', html)
        assert [json.loads(data)["unit"] for _, data in plots] == ["count", "seconds", "seconds", "bytes", "count"]
        assert "acknowledged is highest at" in plots[0][0]
        assert "with 41" in plots[0][0]
        assert plots[2][0].endswith("There are no figures."), "nothing was delivered"
        [hour] = re.findall(r"<tr><th scope=.row.>orders</th>.*?</tr>", html, re.DOTALL)
        assert re.findall(r"<td>(.*?)</td>", hour) == ["41", "2", "0"]
        assert len(re.findall(r"<rect class=", hour)) == 2
        assert html.count("<summary>As a table</summary>") == 5
        for words in ("<td>1.5 s</td>", "<td>4 ms</td>"):
            assert words in html

    def test_a_queue_and_a_longer_time_are_chosen(self, admin_client: Client) -> None:
        roll_up("orders", acknowledged=41)
        roll_up("prices", hours_ago=50, acknowledged=77)
        day = admin_client.get(CHARTS).content.decode()
        assert "<option>orders</option>" in day
        assert "prices" not in day
        week = admin_client.get(CHARTS, {"hours": "168", "queue": "prices"}).content.decode()
        assert "<option selected>prices</option>" in week
        assert "<td>77</td>" in week
        assert "<td>41</td>" not in week

    def test_bytes_failures_reasons_and_the_busiest_keys_are_drawn(self, admin_client: Client) -> None:
        roll_up(
            bytes=2_000_000, attempts=9, dead_reasons=[{"name": "card refused", "count": 3}],
            producers=[{"name": "shop", "count": 40}, {"name": "till", "count": 2}],
        )  # fmt: skip
        refused, till = {"name": "card refused", "count": 4}, {"name": "till", "count": 1}
        roll_up(hours_ago=2, dead_reasons=[refused], producers=[till])
        roll_up("prices", consumers=[{"name": "billing", "count": 5}])
        shown = text_of(admin_client.get(CHARTS))
        for words in ("2 MB", "card refused 7", "shop 40", "till 3", "billing 5"):
            assert words in shown
        assert "billing 5" not in text_of(admin_client.get(CHARTS, {"queue": "orders"}))

    @pytest.mark.parametrize(
        "given", [{"hours": "1"}, {"hours": "x"}, {"queue": "its <b>"}, {"until": "x"}, {"until": "2026-13-40 0:0"}]
    )
    def test_missing_values_are_no_error(self, admin_client: Client, given: dict[str, str]) -> None:
        roll_up()
        answer = admin_client.get(CHARTS, given)
        assert answer.status_code == 200
        assert "<b>" not in answer.content.decode()

    @pytest.mark.parametrize("rows", [1, 60])
    def test_the_page_takes_as_many_queries_for_many_queues_as_for_one(
        self, admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, rows: int
    ) -> None:
        for n in range(rows):
            roll_up(f"queue {n:02}", hours_ago=n % 20, acknowledged=100 - n)
        with django_assert_num_queries(2 + 6):  # session and user; queues' names, hours, queues, details, when computed
            html = admin_client.get(CHARTS).content.decode()
        assert ("45 others" in html) == (rows == 60)

    def test_it_needs_view_permission(self, client: Client) -> None:
        user = User.objects.create_user("staff", is_staff=True)
        client.force_login(user)
        assert client.get(CHARTS).status_code == 403
        user.user_permissions.add(Permission.objects.get(codename="view_rollup"))
        assert client.get(CHARTS).status_code == 200


def test_the_hours_before_a_moment_end_with_its_own() -> None:
    hours = span(datetime(2026, 11, 22, 13, 59, 59, tzinfo=UTC), 3)
    assert [f"{hour:%H:%M:%S}" for hour in hours] == ["11:00:00", "12:00:00", "13:00:00"]


def test_a_run_in_the_shell_shows_like_any_other(admin_client: Client) -> None:
    run = runs.create(trigger="shell:root")
    assert "shell:root" in text_of(admin_client.get(page(run)))
