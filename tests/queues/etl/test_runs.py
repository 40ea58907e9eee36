"""The life of runs as their rows tell it; what the job does is played by a process that says what it is told to."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import psutil
import psycopg
import pytest
from django.utils import timezone

from queues.database.parameters import connection_parameters
from queues.etl import runner, runs
from queues.etl.errors import InvalidOptions, NoSuchRun, NotRunning, OutputBusy
from queues.etl.jar import driver_jar
from queues.etl.job.config import Config
from queues.etl.options import RunOptions, default_output
from queues.management.commands.etl import ProgressLines
from queues.management.shell import ended_by_sigterm
from queues.models import EtlRun, EtlState
from tests.process import Process
from tests.queues.etl.conftest import config
from tests.queues.shell import Shell
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

MESSAGES = {"rows_in": 5, "rows_out": 5, "bytes": 60, "files": 1}
AUDIT = {"rows_in": 1, "rows_out": 1, "bytes": 6, "files": 1}
FIGURES = {
    "number": 3, "window_from": "1:1:", "window_to": "2:2:", "late_rows": 4, "hours": 0, "proven": [],
    "tables": {"messages": MESSAGES, "audit": AUDIT}, "seconds": {"verifying": 0.0},
}  # fmt: skip
RESULT = json.dumps({"result": FIGURES})

Play = Callable[[str], None]


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path
    settings.ETL_OUTPUT = str(tmp_path / "out")
    settings.BROKER_AUDIT_KEY = None
    settings.BROKER_AUDIT_TRUSTED_KEYS = ()
    return tmp_path


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Have this text run in the job's place; `tell` writes a line of progress, `config` is what it was given."""

    def use(body: str) -> None:
        head = "import json, os, sys, time\nconfig = json.load(open(sys.argv[1]))\n"
        head += "def tell(line):\n    open(config['progress'], 'a').write(line + '\\n')\n"
        (tmp_path / "fakejob.py").write_text(head + textwrap.dedent(body))
        monkeypatch.setattr(runner, "JOB", str(tmp_path / "fakejob.py"))

    return use


def test_a_run_for_which_no_process_can_be_started_has_failed_and_is_in_no_others_way(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*command: Any, **options: Any) -> NoReturn:
        raise OSError("too many processes")

    with monkeypatch.context() as full:
        full.setattr(subprocess, "Popen", fail)
        with pytest.raises(OSError, match="too many processes"):
            runs.start(RunOptions())
    [ended] = EtlRun.objects.all()
    assert (ended.state, ended.error) == (EtlState.FAILED, "No process could be started: too many processes")
    play(f"tell('{RESULT}')")
    assert runs.run(runs.create()).state == EtlState.SUCCEEDED


def test_a_run_that_succeeds_has_the_jobs_figures(play: Play, home: Path) -> None:
    play(f"""
        tell('{{"stage": "messages", "done": 3, "total": 5}}')
        tell('{{"warning": "Mind the gap."}}')
        print("a word for the log", flush=True)
        tell('''{RESULT}''')
    """)
    run = runs.run(runs.create(trigger="test"))
    assert (run.state, run.error, run.trigger) == (EtlState.SUCCEEDED, "", "test")
    assert (run.number, run.window_from, run.window_to) == (3, "1:1:", "2:2:")
    assert (run.rows_in, run.rows_out, run.late_rows, run.bytes) == (6, 6, 4, 66)
    assert (run.stage, run.done, run.total, run.warnings) == ("messages", 3, 5, ["Mind the gap."])
    assert (run.host, run.pid) == (os.uname().nodename, os.getpid())
    assert run.started_at is not None
    assert run.ended_at is not None
    assert run.log == str(home / "etl-logs" / f"{run.pk}.log")
    assert Path(run.log).read_text() == "a word for the log\n"
    assert run.figures["audit"] == {}


def test_a_run_shows_whoever_waits_for_it_how_far_it_is(play: Play) -> None:
    play(f"""
        tell('{{"stage": "messages", "done": 3, "total": 5}}')
        tell('''{RESULT}''')
    """)
    shown: list[tuple[str, int, int]] = []
    runs.run(runs.create(), lambda *progress: shown.append(progress))
    assert set(shown) == {("messages", 3, 5)}


def test_a_run_whose_chains_could_not_be_verified_because_the_database_went_has_exported_all_the_same(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> NoReturn:
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr("queues.etl.run_supervisor.verify_chains", lost)
    play(f"tell('{RESULT}')")
    run = runs.run(runs.create())
    assert (run.state, run.rows_out) == (EtlState.SUCCEEDED, 6)
    assert run.warnings == ["The audit chains could not be verified: the connection is lost"]


def test_the_password_is_in_no_command_line_and_no_environment_and_gone_afterwards(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = connection_parameters().get("password")
    if not password:
        pytest.skip("this server asks for no password")
    monkeypatch.setenv("DATABASE_URL", f"postgresql://me:{password}@here/x")
    monkeypatch.setenv("PGPASSWORD", password)
    play(f"""
        mode = os.stat(sys.argv[1]).st_mode & 0o777
        password = config["database"]["password"]
        here = open("/proc/self/cmdline").read() + open("/proc/self/environ").read()
        tell(json.dumps({{"warning": f"{{mode:o}} {{password in here}} {{sys.argv[1]}}"}}))
        tell('''{RESULT}''')
    """)
    (warning,) = runs.run(runs.create()).warnings
    mode, leaked, path = warning.split(" ", 2)
    assert (mode, leaked) == ("600", "False")
    assert not Path(path).exists()


def test_the_job_has_of_the_environment_only_what_is_listed(
    play: Play, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.BROKER_ETL_ENVIRONMENT = ("ASKED_FOR",)
    names = ("BROKER_KEY_PEPPERS", "PEERBUS_TOKEN", "SECRET_KEY", "MY_SECRET", "SPARK_CONF_DIR", "ASKED_FOR")
    for name in names:
        monkeypatch.setenv(name, "value")
    play(f"""
        names = {(*names, "PATH")!r}
        tell(json.dumps({{"warning": " ".join(name for name in names if name in os.environ)}}))
        tell('''{RESULT}''')
    """)
    assert runs.run(runs.create()).warnings == ["SPARK_CONF_DIR ASKED_FOR PATH"]


def test_the_jobs_log_and_its_files_are_for_the_owner_alone(play: Play, home: Path) -> None:
    play(f"""
        open({str(home / "made")!r}, "w").close()
        print("a word of a message", flush=True)
        tell('''{RESULT}''')
    """)
    log = Path(runs.run(runs.create()).log)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (log.parent, log, home / "made")]
    assert modes == [0o700, 0o600, 0o600]


def test_the_job_leaves_no_copy_of_its_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    given = config("/out", bodies="raw")
    path.write_text(given.text())
    assert Config.take(path) == given
    assert not path.exists()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("tell('{\"error\": \"The output cannot be used\"}'); sys.exit(1)", "The output cannot be used"),
        ("print('OutOfMemoryError: heap', file=sys.stderr); os.kill(os.getpid(), 9)", "OutOfMemoryError: heap"),
        ("open(config['progress'], 'w').write('{\"stage\": \"mess'); sys.exit(3)", "status 3"),
    ],
)
def test_a_run_that_fails_says_why(play: Play, body: str, error: str) -> None:
    play(body)
    run = runs.run(runs.create())
    assert run.state == EtlState.FAILED
    assert error in run.error


def test_a_run_that_takes_too_long_is_ended_with_all_that_it_has_started(
    play: Play, settings: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = home / "child"
    follow = runner.follow

    def follow_too_long(job: Any, *look: Any) -> Any:
        wait_until(lambda: child.exists() and child.read_text(), lambda: "the child")
        settings.BROKER_ETL_TIMEOUT = 0.0
        return follow(job, *look)

    monkeypatch.setattr(runner, "follow", follow_too_long)
    play(f"""
        import signal, subprocess
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
        open({str(child)!r}, "w").write(str(child.pid))
        time.sleep(100)
    """)
    run = runs.run(runs.create())
    assert run.state == EtlState.FAILED
    assert "BROKER_ETL_TIMEOUT" in run.error
    wait_until(lambda: not runs_still(int(child.read_text())), lambda: "the end of the child")


def test_a_run_is_cancelled_while_it_runs(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queues.etl.run_supervisor.HEARTBEAT", 0.0)
    play("""tell('{"stage": "messages", "done": 0, "total": 0}'); time.sleep(100)""")
    made = runs.create()
    follow = runner.follow

    def cancel_first(job: Any, *look: Any) -> Any:
        runs.cancel(made.pk)
        return follow(job, *look)

    monkeypatch.setattr(runner, "follow", cancel_first)
    assert runs.run(made).state == EtlState.CANCELLED
    with pytest.raises(NotRunning, match="cancelled"):
        runs.cancel(made.pk)


def test_a_queued_run_is_cancelled_at_once_and_never_taken(play: Play) -> None:
    play(f"tell('''{RESULT}''')")
    made = runs.create()
    assert runs.cancel(made.pk).state == EtlState.CANCELLED
    assert runs.run(made).state == EtlState.CANCELLED


def test_one_run_at_a_time_goes_into_an_output() -> None:
    made = runs.create()
    with pytest.raises(OutputBusy, match=f"run {made.pk} into"):
        runs.create()
    assert runs.create(output="/elsewhere").pk != made.pk
    runs.cancel(made.pk)
    runs.create()


def test_a_started_run_goes_on_without_the_process_that_started_it(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    real = subprocess.Popen

    def popen(command: list[str], **given: Any) -> Any:
        launched.append((command, given["start_new_session"], given["env"]["DATABASE_URL"][:15]))
        return real([sys.executable, "-c", "pass"])

    monkeypatch.setattr(subprocess, "Popen", popen)
    made = runs.start(RunOptions(verify="none"), trigger="admin: eve")
    assert launched == [([sys.executable, "-m", "queues.etl.runner", str(made.pk)], True, "postgresql:///?")]
    assert (made.state, made.options["verify"]) == (EtlState.QUEUED, "none")
    made.refresh_from_db()
    assert made.host == os.uname().nodename
    assert made.pid is not None


def runs_still(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait for its parent to notice."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def dead_pid() -> int:
    process = Process(sys.executable, "-c", "pass")
    process.wait()
    return process.process.pid


#: A timedelta is a time so long before the test.
LOST: dict[str, dict[str, Any]] = {
    "its process is gone": {"host": os.uname().nodename, "pid": -1},
    "its number is another's": {"host": os.uname().nodename, "pid": os.getppid(), "started_at": timedelta(days=900)},
    "its process does other things by now": {
        "host": os.uname().nodename, "pid": os.getpid(), "heartbeat_at": timedelta(minutes=15),
    },
    "another host is silent": {"host": "elsewhere", "pid": 1, "heartbeat_at": timedelta(minutes=5)},
    "the process that was to take it is gone": {
        "state": EtlState.QUEUED, "host": os.uname().nodename, "pid": -1, "started_at": None, "heartbeat_at": None,
    },
    "no worker has taken it": {"state": EtlState.QUEUED, "queued_at": timedelta(hours=2)},
}
ALIVE: dict[str, dict[str, Any]] = {
    "its process runs, and the database was away": {
        "host": os.uname().nodename, "pid": os.getpid(), "heartbeat_at": timedelta(minutes=5),
    },
    "another host speaks": {"host": "elsewhere", "pid": 1},
    "it was queued just now": {"state": EtlState.QUEUED},
    "its process is about to take it": {"state": EtlState.QUEUED, "host": os.uname().nodename, "pid": os.getpid()},
}


def row(**columns: Any) -> EtlRun:
    now = timezone.now()
    columns = {name: now - value if isinstance(value, timedelta) else value for name, value in columns.items()}
    given: dict[str, Any] = {"state": EtlState.RUNNING, "started_at": now, "heartbeat_at": now, "output": "/x"}
    made = EtlRun.objects.create(trigger="test", **{**given, **columns})
    if "queued_at" in columns:
        EtlRun.objects.filter(pk=made.pk).update(queued_at=columns["queued_at"])
    return made


@pytest.mark.parametrize("case", LOST)
def test_a_run_without_a_supervising_process_is_lost(case: str) -> None:
    columns = dict(LOST[case])
    if columns.get("pid") == -1:
        columns["pid"] = dead_pid()
    made = row(**columns)
    assert [one.pk for one in runs.recover()] == [made.pk]
    made.refresh_from_db()
    assert made.state == EtlState.LOST
    assert made.error.endswith(".")
    assert runs.recover() == []


@pytest.mark.parametrize("case", ALIVE)
def test_a_run_with_a_supervising_process_is_left_alone(case: str) -> None:
    made = row(**ALIVE[case])
    assert runs.recover() == []
    made.refresh_from_db()
    assert not made.is_finished


def test_a_lost_run_that_was_to_end_is_cancelled() -> None:
    made = row(host=os.uname().nodename, pid=dead_pid(), cancelling=True)
    assert runs.recover() == []
    made.refresh_from_db()
    assert made.state == EtlState.CANCELLED


def test_a_run_that_is_not_there_is_named() -> None:
    with pytest.raises(NoSuchRun, match="12345"):
        runs.get(12345)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"bodies": "all"}, "bodies"),
        ({"verify": "some"}, "verify"),
        ({"bodies": "raw", "body_schema": "a int"}, "body_schema"),
        ({"since": timezone.now().replace(tzinfo=None)}, "since"),
    ],
)
def test_wrong_options_are_named(given: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidOptions, match=word):
        RunOptions(**given)


def test_options_survive_their_row() -> None:
    options = RunOptions(since=datetime.fromisoformat("2026-11-22T08:30:00+01:00"), bodies="json", body_schema="a int")
    assert RunOptions.load(options.dump()) == options


def test_an_output_is_a_url_or_an_absolute_path(settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    settings.ETL_OUTPUT = "s3a://bucket/x"
    assert default_output() == "s3a://bucket/x"
    settings.ETL_OUTPUT = "here"
    assert default_output() == str(tmp_path / "here")


def test_the_newest_driver_of_the_first_place_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    for name in ("postgresql-42.7.3.jar", "postgresql-42.10.0.jar", "postgresql-9.4.jar"):
        (tmp_path / name).touch()
    places = [str(tmp_path / "none-*.jar"), str(tmp_path / "postgresql-*.jar")]
    assert driver_jar(None, places) == tmp_path / "postgresql-42.10.0.jar"
    assert driver_jar(Path("/mine.jar"), places) == Path("/mine.jar")
    assert driver_jar(None, places[:1]) is None


def test_the_command_shows_runs_and_says_what_is_wrong(shell: Shell, play: Play) -> None:
    assert "no runs yet" in shell("etl", "list").err
    play("tell('{\"error\": \"The database is away\"}'); sys.exit(1)")
    failed = shell("etl", "run", "--no-verify")
    assert failed.status == 1
    assert "has failed: The database is away" in failed.err
    play(f"tell('''{RESULT}''')")
    done = shell("etl", "run", "--since", "2026-11-20", "--json")
    assert (done.status, done.json["state"], done.json["rows_out"]) == (0, "succeeded", 6)
    assert done.json["options"]["since"] == "2026-11-20T00:00:00+00:00"
    listed = shell("etl", "list", "--json").json
    assert [(one["run"], one["state"]) for one in listed] == [
        (done.json["run"], "succeeded"), (done.json["run"] - 1, "failed"),
    ]  # fmt: skip
    assert "succeeded" in shell("etl", "list").out
    shown = shell("etl", "show", str(done.json["run"]))
    assert "rows_out" in shown.out
    assert shell("etl", "show", "99999").status == 1
    assert shell("etl", "cancel", str(done.json["run"])).status == 1
    assert "yesterday" in shell("etl", "run", "--since", "yesterday").err


def test_the_command_tells_how_far_it_is_line_by_line_and_ends_in_sentences(shell: Shell, play: Play) -> None:
    stages = ["starting Spark", "messages", "committing"]
    lines = "".join(f"tell('{{\"stage\": \"{stage}\", \"done\": 2, \"total\": 5}}')\n" for stage in stages)
    play(f"{lines}tell('{RESULT}')")
    done = shell("etl", "run", "--no-verify")
    first, *rest = done.out.splitlines()
    assert re.fullmatch(r" +\d+ s  starting Spark, 2 of about 5 rows", first)
    assert [line.split("  ")[-1].split(",")[0] for line in rest[:2]] == stages[1:]
    assert re.match(r"Run \d+ has written to /.* in [\d,]+ s: [\d,]+ files, \d+ bytes\.", rest[2])
    assert rest[3].startswith("Messages finished since the last run: 5; rows of audit chains: 1;")
    assert not any(mark in done.out for mark in "{}'")
    assert shell("etl", "run", "--no-verify", "--json").json["window_to"] == "2:2:"


def test_a_run_that_lasts_is_told_of_now_and_then() -> None:
    said: list[str] = []
    lines = ProgressLines(said.append)
    lines("messages", 0, 0)
    lines("messages", 1, 5)
    assert len(said) == 1
    lines.EVERY = 0.0
    lines("messages", 2, 5)
    assert said[1].endswith("messages, 2 of about 5 rows")


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_run_ends_in_order_when_its_terminal_is_closed_or_it_is_told_to_end(
    shell: Shell, play: Play, home: Path, sign: signal.Signals
) -> None:
    play(f"""
        open({str(home / "pid")!r}, "w").write(str(os.getpid()))
        os.kill(os.getppid(), {int(sign)})
        time.sleep(100)
    """)
    ended = shell("etl", "run")
    assert (ended.status, EtlRun.objects.get().state) == (1, EtlState.CANCELLED)
    assert "was cancelled" in ended.err
    assert not runs_still(int((home / "pid").read_text()))


def test_a_command_that_ignores_a_closed_terminal_goes_on() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_sigterm():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
