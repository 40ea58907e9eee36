"""API keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from queues.engine.access import key_digest
from queues.models import ApiKey
from queues.operations import keys

pytestmark = pytest.mark.django_db


def test_a_key_is_random_and_only_its_digest_is_stored(settings: Any) -> None:
    row, text = keys.create_key("app")
    assert len(text) == 43
    assert row.digest == key_digest(text, settings.SECRET_KEY)
    assert row.hint == text[:4]
    assert text not in str(ApiKey.objects.values().get())
    assert keys.create_key("other")[1] != text


def test_a_key_may_be_given_and_a_short_one_leaves_no_hint() -> None:
    row, text = keys.create_key("app", key="dev-key")
    assert (text, row.hint, row.digest) == ("dev-key", "", keys.digest("dev-key"))


def test_scopes_are_kept_and_everything_is_allowed_by_default() -> None:
    row, _ = keys.create_key("all")
    assert (row.protocols, row.publish, row.consume, row.manage) == ([], ["*"], ["*"], [])
    row, _ = keys.create_key("some", protocols=["sspq", "sspq"], publish=["a*", "b"], consume=[], manage=["c"])
    row.refresh_from_db()
    assert (row.protocols, row.publish, row.consume, row.manage) == (["sspq"], ["a*", "b"], [], ["c"])


def test_a_name_or_value_that_is_taken_is_refused() -> None:
    keys.create_key("app", key="dev-key")
    with pytest.raises(keys.KeyExists, match="named 'app'"):
        keys.create_key("app")
    with pytest.raises(keys.KeyExists, match="this value"):
        keys.create_key("other", key="dev-key")
    keys.revoke_key("app")
    with pytest.raises(keys.KeyExists, match="now revoked"):
        keys.create_key("app")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "a\0"}, "name"),
        ({"key": ""}, "empty"),
        ({"protocols": ["smtp"]}, "'smtp' is no protocol"),
        ({"publish": [""]}, "pattern"),
        ({"consume": ["x" * 256]}, "pattern"),
        ({"manage": ["a\0"]}, "pattern"),
    ],
)
def test_an_invalid_key_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(keys.InvalidKey, match=reason):
        keys.create_key(**{"name": "app", **fields})
    assert not ApiKey.objects.exists()


def test_a_revoked_key_keeps_the_time_of_its_first_revocation() -> None:
    keys.create_key("app")
    first = keys.revoke_key("app").revoked_at
    assert first is not None
    assert keys.revoke_key("app").revoked_at == first
    with pytest.raises(ApiKey.DoesNotExist):
        keys.revoke_key("gone")


def test_keys_are_listed_by_name_revoked_ones_too() -> None:
    for name in ("b", "a"):
        keys.create_key(name)
    keys.revoke_key("b")
    assert [row.name for row in keys.list_keys()] == ["a", "b"]


def test_a_new_pepper_makes_new_digests_and_keys_made_with_the_old_one_are_known(settings: Any) -> None:
    old, _ = keys.create_key("old", key="the old key is long")
    settings.BROKER_KEY_PEPPERS = ("a pepper that is new", *settings.BROKER_KEY_PEPPERS)
    new, _ = keys.create_key("new", key="the new key is long")
    assert old.digest in keys.digests("the old key is long")
    assert new.digest == key_digest("the new key is long", "a pepper that is new")
    with pytest.raises(keys.KeyExists, match="this value"):
        keys.create_key("again", key="the old key is long")


def test_a_rotated_key_has_another_value_and_the_one_before_for_a_while() -> None:
    first, before = keys.create_key("app")
    row, text = keys.rotate_key("app", timedelta(hours=1))
    assert (row.pk, row.digest, row.hint) == (first.pk, keys.digest(text), text[:4])
    assert row.old_digest == keys.digest(before)
    assert row.old_until is not None
    assert timedelta(minutes=59) < row.old_until - timezone.now() <= timedelta(hours=1)
    for taken in (before, text):
        with pytest.raises(keys.KeyExists):
            keys.create_key("other", key=taken)
        with pytest.raises(keys.KeyExists):
            keys.rotate_key("app", timedelta(0), taken)
    row, _ = keys.rotate_key("app", timedelta(0), "a third value, given")
    assert (row.old_digest, row.old_until) == (None, None)
    assert row.digest == keys.digest("a third value, given")


def test_a_key_that_cannot_be_rotated_stays_as_it_is() -> None:
    row, _ = keys.create_key("app")
    for grace, value in ((timedelta(seconds=-1), None), (timedelta(days=367), None), (timedelta(0), "")):
        with pytest.raises(keys.InvalidKey):
            keys.rotate_key("app", grace, value)
    keys.revoke_key("app")
    with pytest.raises(keys.InvalidKey, match="revoked"):
        keys.rotate_key("app", timedelta(0))
    with pytest.raises(ApiKey.DoesNotExist):
        keys.rotate_key("nowhere", timedelta(0))
    assert ApiKey.objects.get().digest == row.digest
