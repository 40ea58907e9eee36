"""The environment: every value typed, every wrong one named."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from ipaddress import ip_network
from pathlib import Path

import pytest

from brokersite.environment import CHECKOUT, Environment
from queues.config.options import InvalidEnvironment, size, size_text


def read(tmp_path: Path, **environ: str) -> Environment:
    return Environment.read({"DATA_DIR": str(tmp_path), **environ})


def test_nothing_set_gives_the_documented_defaults(tmp_path: Path) -> None:
    env = Environment.read({"SECRET_KEY": "x"})
    assert env.DATA_DIR == CHECKOUT / ".data"
    assert env.DATABASE_URL is None
    assert env.DEBUG is False
    assert env.BROKER_PREFETCH == 10_000
    assert env.BROKER_PREFETCH_BYTES == 16 * 1024 * 1024
    assert env.BROKER_IDLE_TIMEOUT == 0.0
    assert env.BROKER_ALLOW == ()
    assert env.BROKER_TLS_CERT is None
    assert env.BROKER_SSPQ_QUEUE == "sspq"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("BROKER_PREFETCH", "1", 1),
        ("BROKER_PREFETCH", "20_000", 20_000),
        ("BROKER_MAX_FRAME", "65536", 65536),
        ("BROKER_MAX_FRAME", "64KiB", 65536),
        ("BROKER_MAX_FRAME", "2 mib", 2 * 1024 * 1024),
        ("BROKER_IDLE_TIMEOUT", "0.25", 0.25),
        ("DEBUG", "on", True),
        ("DEBUG", "No", False),
        ("DEBUG", "", False),
        ("ALLOWED_HOSTS", "a.example, b.example", ("a.example", "b.example")),
        ("BROKER_ALLOW", "10.0.0.0/8,::1", (ip_network("10.0.0.0/8"), ip_network("::1/128"))),
        ("DATABASE_URL", "postgresql://u:p@h:1/n", "postgresql://u:p@h:1/n"),
        ("BROKER_SSPQ_QUEUE", "Q", "Q"),
    ],
)
def test_a_good_value_is_read(tmp_path: Path, name: str, text: str, value: object) -> None:
    read_value = getattr(read(tmp_path, **{name: text}), name)
    assert read_value == value
    assert type(read_value) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "right"),
    [
        ("BROKER_PREFETCH", "many", "a whole number from 1 to 10000000"),
        ("BROKER_PREFETCH", "0", "a whole number from 1 to 10000000"),
        ("BROKER_PREFETCH", "1.5", "a whole number from 1 to 10000000"),
        ("BROKER_MAX_FRAME", "16MB", "such as 65536 or 16MiB"),
        ("BROKER_MAX_FRAME", "16777217", "from 1KiB to 16MiB"),
        ("BROKER_IDLE_TIMEOUT", "-1", "seconds from 0 to 86400"),
        ("BROKER_IDLE_TIMEOUT", "nan", "seconds from 0 to 86400"),
        ("DEBUG", "maybe", "on or off"),
        ("BROKER_ALLOW", "10.0.0.1/8", "networks with commas"),
        ("BROKER_TLS_CERT", "/nowhere/cert.pem", "the path of a file that exists"),
        ("DATABASE_URL", "mysql://h/n", "a PostgreSQL URI"),
        ("DATABASE_URL", "postgresql://h:port/n", "a PostgreSQL URI"),
        ("DATABASE_URL", "postgresql://h", "with a database name"),
        ("BROKER_SSPQ_QUEUE", "q" * 256, "a text of 1 to 255 characters"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_its_value_and_what_is_right(
    tmp_path: Path, name: str, text: str, right: str
) -> None:
    with pytest.raises(InvalidEnvironment) as caught:
        read(tmp_path, **{name: text})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{name}={text!r}: it must be ")
    assert right in problem


def test_every_wrong_value_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidEnvironment) as caught:
        read(tmp_path, BROKER_PREFETCH="x", DEBUG="y")
    assert [problem.split("=")[0] for problem in caught.value.problems] == ["DEBUG", "BROKER_PREFETCH"]


def test_a_wrong_data_dir_is_named_alone_though_other_defaults_lie_in_it() -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        Environment.read({"DATA_DIR": "/dev/null"})
    assert [problem.partition("=")[0] for problem in refused.value.problems] == ["DATA_DIR"]


def test_the_password_of_a_refused_url_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidEnvironment) as caught:
        read(tmp_path, DATABASE_URL="mysql://me:hunter2@h/n")
    assert "mysql://me:***@h/n" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_misspelt_name_is_refused_with_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidEnvironment, match=r"BROKER_PREFECH='5': .* did you mean BROKER_PREFETCH\?"):
        read(tmp_path, BROKER_PREFECH="5")


def test_variables_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    read(tmp_path, BROKER_URL="redis://x", DATABASE_URI="x")


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    cert = tmp_path / "cert.pem"
    cert.touch()
    with pytest.raises(InvalidEnvironment, match="BROKER_TLS_CERT is set and BROKER_TLS_KEY is not"):
        read(tmp_path, BROKER_TLS_CERT=str(cert))
    with pytest.raises(InvalidEnvironment, match="BROKER_TLS_CLIENT_CA is set without BROKER_TLS_CERT"):
        read(tmp_path, BROKER_TLS_CLIENT_CA=str(cert))
    assert read(tmp_path, BROKER_TLS_CERT=str(cert), BROKER_TLS_KEY=str(cert)).BROKER_TLS_KEY == cert


def test_the_secret_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    first = read(tmp_path).SECRET_KEY
    assert len(first) == 50
    assert read(tmp_path).SECRET_KEY == first
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600


def test_a_given_secret_key_is_not_written_down(tmp_path: Path) -> None:
    assert read(tmp_path, SECRET_KEY="given").SECRET_KEY == "given"
    assert not (tmp_path / "secret_key").exists()


@pytest.mark.parametrize(
    ("count", "text"), [(1025, "1025"), (1536, "1536"), (2048, "2KiB"), (1024**2, "1MiB"), (1024**3, "1GiB")]
)
def test_a_size_reads_back_as_it_is_written(count: int, text: str) -> None:
    assert size_text(count) == text
    assert size(1, "").parse(text) == count


def test_a_command_with_a_wrong_environment_says_so_in_one_sentence_and_exits_2() -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=CHECKOUT,
        env={**os.environ, "BROKER_PREFETCH": "lots"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "BROKER_PREFETCH='lots': it must be a whole number" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_option_is_a_django_setting_of_the_same_name() -> None:
    from django.conf import settings

    assert settings.BROKER_PREFETCH == 10_000
    for option in Environment.options():
        assert hasattr(settings, option.name)
