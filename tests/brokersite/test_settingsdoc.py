"""docs/settings.md says what brokersite/environment.py says."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from brokersite.environment import CHECKOUT, Environment
from brokersite.management.commands import settingsdoc
from brokersite.settingsdoc import page


def test_the_committed_page_is_current() -> None:
    assert (CHECKOUT / "docs" / "settings.md").read_text() == page(Environment)


def test_every_option_has_an_entry_with_its_default() -> None:
    text = page(Environment)
    for option in Environment.options():
        assert text.count(f"\n- **`{option.name}`**,") == 1  # another's default may name it too
    assert "- **`BROKER_PREFETCH`**, default `10000`." in text
    assert "- **`BROKER_MAX_FRAME`**, default 16MiB." in text
    assert max(map(len, text.splitlines())) <= 120
    assert "None" not in text.replace("None means", "")


def test_check_fails_on_a_page_that_is_missing_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "docs" / "settings.md"
    monkeypatch.setattr(settingsdoc, "PAGE", target)
    with pytest.raises(CommandError, match="not current"):
        call_command("settingsdoc", "--check")
    call_command("settingsdoc", verbosity=0)
    call_command("settingsdoc", "--check")
    target.write_text(target.read_text() + "x")
    with pytest.raises(CommandError, match="not current"):
        call_command("settingsdoc", "--check")
