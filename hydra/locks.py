"""The advisory lock of a running node."""

from __future__ import annotations

from typing import Final

#: The lock's first key; the second is the id of the node's row.
LOCK_CLASS: Final = 74663
