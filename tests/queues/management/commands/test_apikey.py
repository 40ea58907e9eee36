"""`manage.py apikey`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from queues.models import ApiKey, ApiKeyUse
from queues.operations import keys
from tests.queues.shell import Shell

pytestmark = pytest.mark.django_db


def test_the_key_alone_is_printed_and_nowhere_again(shell: Shell) -> None:
    created = shell("apikey", "create", "app")
    text = created.out.strip()
    assert created.status == 0
    assert ApiKey.objects.get().digest == keys.digest(text)
    assert "not shown again" in created.err
    for listed in (shell("apikey", "list"), shell("apikey", "list", "--json")):
        assert "app" in listed.out
        assert text not in listed.out


def test_a_key_may_be_given_with_its_scopes(shell: Shell) -> None:
    shell(
        "apikey", "create", "app", "--key", "dev-key", "--protocol", "sspq", "blipmq", "--publish", "a*",
        "--publish", "b", "--consume", "c", "d", "--manage", "*", "--json",
    )  # fmt: skip
    row = ApiKey.objects.get()
    assert row.digest == keys.digest("dev-key")
    assert (row.protocols, row.publish, row.consume, row.manage) == (
        ["sspq", "blipmq"], ["a*", "b"], ["c", "d"], ["*"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "publish", "consume"),
    [([], [], []), (["--publish", "a"], ["a"], []), (["--consume", "a"], [], ["a"])],
)
def test_what_no_pattern_allows_is_not_granted(
    shell: Shell, options: list[str], publish: list[str], consume: list[str]
) -> None:
    created = shell("apikey", "create", "app", "--json", *options).json
    assert (created["publish"], created["consume"]) == (publish, consume)
    assert keys.digest(created["key"]) == ApiKey.objects.get().digest


def test_a_key_without_rights_says_so_until_some_are_granted(shell: Shell) -> None:
    created = shell("apikey", "create", "app")
    assert created.status == 0
    assert "It may do nothing yet. Grant it something: apikey grant app --publish" in created.err
    granted = shell("apikey", "grant", "app", "--publish", "a*", "b", "--protocol", "blipmq")
    assert (granted.status, granted.err) == (0, "")
    assert ApiKey.objects.values_list(*keys.SCOPES).get() == (["blipmq"], ["a*", "b"], [], [])
    assert shell("apikey", "grant", "app", "--publish", "", "--consume", "c", "--json").json["consume"] == ["c"]
    assert ApiKey.objects.values_list(*keys.SCOPES).get() == (["blipmq"], [], ["c"], [])
    shell("apikey", "revoke", "app")
    for arguments, status, reason in (
        (("app",), 2, "Give --protocol"),
        (("gone", "--publish", "a"), 1, "'gone'"),
        (("app", "--publish", "a"), 1, "revoked"),
    ):
        refused = shell("apikey", "grant", *arguments)
        assert (refused.status, reason in refused.err) == (status, True)


def test_a_revoked_key_says_so_in_the_list(shell: Shell) -> None:
    shell("apikey", "create", "app")
    assert shell("apikey", "list", "--json").json[0]["revoked_at"] is None
    assert shell("apikey", "revoke", "app").status == 0
    assert shell("apikey", "list", "--json").json[0]["revoked_at"] is not None


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("create", "app"), 1, "named 'app'"),
        (("create", "other", "--key", ""), 1, "empty"),
        (("create", "other", "--protocol", "smtp"), 2, "smtp"),
        (("revoke", "gone"), 1, "'gone'"),
        ((), 2, "create|list|grant|rotate|revoke"),
    ],
)
def test_refusals_have_a_reason_and_a_status(
    shell: Shell, arguments: tuple[str, ...], status: int, reason: str
) -> None:
    shell("apikey", "create", "app")
    outcome = shell("apikey", *arguments)
    assert outcome.status == status
    assert reason in outcome.err
    assert ApiKey.objects.count() == 1


def test_a_key_may_come_from_a_file_or_from_standard_input(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a key of some length\n")
    assert shell("apikey", "create", "one", "--key-file", str(tmp_path / "key")).out == "a key of some length\n"
    assert shell("apikey", "create", "two", "--key-file", "-", stdin=b"another of that length\n").status == 0
    assert ApiKey.objects.get(name="two").digest == keys.digest("another of that length")
    for arguments, stdin in (((str(tmp_path / "none"),), b""), (("-",), b""), (("-", "--key", "x"), b"y")):
        assert shell("apikey", "create", "three", "--key-file", *arguments, stdin=stdin).status == 2
    assert ApiKey.objects.count() == 2


def test_the_list_has_the_last_log_in_of_each_key(shell: Shell) -> None:
    for name in ("used", "unused"):
        shell("apikey", "create", name)
    at = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    ApiKeyUse.objects.create(key=ApiKey.objects.get(name="used"), at=at, protocol="blipmq", address="192.0.2.7:5")
    logins = {row["name"]: row["last_login"] for row in shell("apikey", "list", "--json").json}
    assert logins == {
        "used": {"at": "2026-01-02T03:04:00+00:00", "protocol": "blipmq", "address": "192.0.2.7:5"}, "unused": None,
    }  # fmt: skip
    _, unused, used = shell("apikey", "list").out.splitlines()
    assert used.endswith("  2026-01-02 03:04, blipmq from 192.0.2.7:5")
    assert unused.endswith("  -")


def test_a_rotated_key_is_printed_alone_or_as_json(shell: Shell) -> None:
    shell("apikey", "create", "app")
    text = shell("apikey", "rotate", "app").out.strip()
    assert ApiKey.objects.get().digest == keys.digest(text)
    rotated = shell("apikey", "rotate", "app", "--grace", "3600", "--json").json
    row = ApiKey.objects.get()
    assert (row.digest, row.old_digest) == (keys.digest(rotated["key"]), keys.digest(text))
    assert row.old_until is not None
    assert rotated["old_until"] == row.old_until.isoformat()


def test_a_short_key_is_taken_with_a_warning(shell: Shell) -> None:
    made = shell("apikey", "create", "short", "--key", "dev-key")
    assert (made.status, made.out) == (0, "dev-key\n")
    assert "Warning: The key has 7 characters: fewer than 16 can be guessed." in made.err
    assert "Warning" not in shell("apikey", "create", "long", "--key", "x" * 16).err
