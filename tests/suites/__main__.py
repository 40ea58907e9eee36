"""The tests of kombu, Celery and django-tasks on Fivewire, and on RabbitMQ where it is installed::

    python -m tests.suites [--suite kombu] [--suite celery] [--suite django-tasks] [--minutes 20]
    python -m tests.suites --suite celery --path t/integration/test_tasks.py

Each suite is the one of the installed version, out of its source package, which pip fetches into a scratch directory.
PostgreSQL and RabbitMQ are this run's own. docs/contributing.md must name what fails on Fivewire and not on RabbitMQ;
anything else that fails on Fivewire alone makes the exit status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from brokersite import embedded
from brokersite.environment import CHECKOUT
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.servers import private_rabbitmq

HERE = Path(__file__).parent
DOCUMENT = CHECKOUT / "docs" / "contributing.md"
#: Seconds that one test may take.
TEST_TIMEOUT = 90
#: Seconds that an interrupted suite has to write its report.
LAST_WORDS = 30
#: Plugins of this project's own tests, which a suite's pytest must not load.
WITHOUT = ("django", "asyncio", "xdist", "hypothesispytest", "cacheprovider")
#: The place of a file of ours in a source package.
OWN = "t/integration/own_common.py"
#: Results of a test, worst first.
FAILED, SKIPPED, PASSED = "failed", "skipped", "passed"


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests of another project: its package, the paths in its source package, a file of ours that goes there, and the
    plugins of pytest's that it needs."""

    name: str
    paths: tuple[str, ...]
    own: str | None = None
    plugins: tuple[str, ...] = ()


SUITES = (
    Suite("kombu", (OWN,), "kombu_common.py"),
    Suite("celery", ("t/integration",), plugins=("celery.contrib.pytest",)),
    Suite("django-tasks", ("tests",)),
)


def fetch(suite: Suite, scratch: Path) -> Path:
    """Unpack the source package of the installed version; returns its directory."""
    wanted = f"{suite.name}=={version(suite.name)}"
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", ":all:", "--no-deps", "--dest", str(scratch),
        wanted,
    ]  # fmt: skip
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    stem = suite.name.replace("-", "_")
    [archive] = scratch.glob(f"{stem}-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(scratch, filter="data")
    root = scratch / archive.name.removesuffix(".tar.gz")
    if suite.own is not None:
        shutil.copy(HERE / suite.own, root / OWN)
    return root


@contextlib.contextmanager
def database(scratch: Path) -> Iterator[str]:
    """A PostgreSQL of this run's own with Fivewire's tables; gives the broker's URL."""
    home = scratch / "postgres"
    server = embedded.ensure_running(home)
    try:
        address = f"{server.user}:{server.password}@{server.host}:{server.port}/{server.dbname}"
        environment = os.environ | {"DATABASE_URL": f"postgresql://{address}"}
        subprocess.run([sys.executable, "manage.py", "migrate", "-v", "0"], cwd=CHECKOUT, env=environment, check=True)
        yield f"fivewire://{address}"
    finally:
        embedded.remove(home)


def run(suite: Suite, root: Path, broker: str, seconds: float) -> dict[str, str]:
    """Run a suite on a broker; returns the result of each test by its name, of those that had an end in time."""
    report = root / "report.xml"
    report.unlink(missing_ok=True)
    plain = re.sub(r"\?.*", "", broker)
    environment = os.environ | {
        "SUITE_BROKER": plain, "TEST_BROKER": plain, "TEST_BACKEND": "rpc://",
        "PYTHONPATH": os.pathsep.join([str(root), str(CHECKOUT)]), "DJANGO_SETTINGS_MODULE": "",
    }  # fmt: skip
    command = [
        sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-c", str(root / "pyproject.toml"), "--rootdir",
        str(root),
        *(f"-pno:{plugin}" for plugin in WITHOUT),
        *(f"-p{plugin}" for plugin in ("queues.celery.transport", *suite.plugins)),
        "--continue-on-collection-errors", "-o", "addopts=", "-o", "xfail_strict=false",
        "-o", "python_classes=Test* test_*", "--timeout", str(TEST_TIMEOUT), "-o", "junit_family=xunit1",
        "--junitxml", str(report), *suite.paths,
    ]  # fmt: skip
    with (root / "output").open("ab") as out:
        process = subprocess.Popen(command, cwd=root, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            print(f"{suite.name}: not ended after {seconds:.0f} s", flush=True)
            process.send_signal(signal.SIGINT)  # it writes its report then
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LAST_WORDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(LAST_WORDS)
    return results(report) if report.exists() else {}


def results(report: Path) -> dict[str, str]:
    """The result of each test in a report of pytest's."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        found[name] = FAILED if kinds & {"failure", "error"} else SKIPPED if "skipped" in kinds else PASSED
    return found


def documented() -> dict[str, str]:
    """The tests that docs/contributing.md says fail here alone, as "suite: test", and why."""
    return dict(re.findall(r"^\| `([\w-]+: [^`]+)` \| (.+) \|$", DOCUMENT.read_text(), re.MULTILINE))


def compare(suite: Suite, found: dict[str, dict[str, str]]) -> list[str]:
    """Print what failed on each broker; returns the tests that failed on Fivewire alone and are not documented."""
    for broker, of_tests in found.items():
        counts = {kind: sum(result == kind for result in of_tests.values()) for kind in (PASSED, FAILED, SKIPPED)}
        print(f"{suite.name:14}{broker:10}", *(f"{count:6} {kind}" for kind, count in counts.items()), flush=True)
    ours, theirs = found["fivewire"], found.get("rabbitmq", {})
    reasons, undocumented, both = documented(), [], 0
    for test in sorted(test for test, result in ours.items() if result == FAILED):
        if theirs.get(test) == FAILED:
            both += 1
        elif (reason := reasons.get(f"{suite.name}: {test}")) is not None:
            print(f"  {test}: on ours, documented: {reason}")
        else:
            print(f"  {test}: on ours alone")
            undocumented.append(f"{suite.name}: {test}")
    if both:
        print(f"  {both} failed on both")
    return undocumented


def main() -> None:
    """Parse the command line, run the suites and compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__)
    parser.add_argument("--suite", action="append", choices=[suite.name for suite in SUITES], help="default: all")
    parser.add_argument("--minutes", type=float, default=20.0, help="that one suite may take on one broker; default 20")
    parser.add_argument("--path", action="append", help="tests in the source package, instead of all of a suite")
    parser.add_argument("--keep", type=Path, help="a directory for sources and outputs, kept; default: a temporary one")
    arguments = parser.parse_args()
    undocumented: list[str] = []
    with contextlib.ExitStack() as stack:
        scratch = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="suites-")))
        scratch.mkdir(exist_ok=True)
        brokers = {"fivewire": stack.enter_context(database(scratch))}
        try:
            server = stack.enter_context(private_rabbitmq(scratch))
            brokers["rabbitmq"] = f"amqp://guest:guest@127.0.0.1:{server.port}//"
        except BenchError:
            print("RabbitMQ is not installed: whatever fails counts as failing on Fivewire alone")
        for suite in SUITES:
            if arguments.suite is None or suite.name in arguments.suite:
                chosen = replace(suite, paths=tuple(arguments.path or suite.paths))
                undocumented += judge(chosen, scratch, brokers, 60 * arguments.minutes)
    sys.exit(bool(undocumented))


def judge(suite: Suite, scratch: Path, brokers: dict[str, str], seconds: float) -> list[str]:
    """Run a suite on every broker; returns what `compare` does."""
    root = fetch(suite, scratch)
    missing = [path for path in suite.paths if not (root / path).exists()]
    if missing:
        print(f"{suite.name:14}the source package has no {', '.join(missing)}: nothing to run", flush=True)
        return []
    found = {}
    for name, broker in brokers.items():
        began = time.monotonic()
        found[name] = run(suite, root, broker, seconds)
        print(f"{suite.name:14}{name:10}{time.monotonic() - began:6.0f} s", flush=True)
    if not found["fivewire"]:
        raise SystemExit(f"{suite.name}: no results:\n{(root / 'output').read_text()[-3000:]}")
    return compare(suite, found)


if __name__ == "__main__":
    main()
