"""A database on several hosts, as libpq takes them: `postgresql://user:password@one,two/name`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Seconds that one host of several may take to answer before the next is tried.
NEXT_HOST = 3


def defaults_for_hosts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that a connection to several hosts has unless others are given: of the hosts, the one that takes
    writes, and no long wait for one that is silent. Empty for one host."""
    if "," not in str(given.get("host") or given.get("hostaddr") or ""):
        return {}
    defaults = {"target_session_attrs": "read-write", "connect_timeout": NEXT_HOST}
    return {name: value for name, value in defaults.items() if not given.get(name)}
