"""A listener that confirms before the commit: a broken build, made on purpose for the checker to catch."""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

from brokersite.environment import CHECKOUT
from queues.engine.api import Engine


def holds_nothing(self: Engine, batch: int) -> bool:
    """In place of `Engine.holds`: no reply waits for anything."""
    return False


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "brokersite.settings")
    Engine.holds = holds_nothing  # type: ignore[method-assign]
    execute_from_command_line([str(CHECKOUT / "manage.py"), *sys.argv[1:]])
