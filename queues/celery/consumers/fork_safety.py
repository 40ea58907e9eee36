"""Connections in a forked process: it must neither use nor end those of its parent.

A forked child has the descriptors of its parent's connections to PostgreSQL. As long as it keeps them open a node that
was killed does not look dead, since its lock lives as long as the connection; and a word said on one of them would be
said in the middle of the parent's. So the child closes them at once, without a word to the server.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class ForkSafe(Protocol):
    """An owner of connections."""

    def descriptors(self) -> list[int]:
        """The descriptors of its connections, as they are now."""

    def disown(self) -> None:
        """This process is a child: the owner must open new connections."""


_watched: weakref.WeakSet[Any] = weakref.WeakSet()
#: Kept for ever, so that nothing of them is finalized in the child.
_disowned: list[ForkSafe] = []


def watch(resource: ForkSafe) -> None:
    """Have the children of this process disown it."""
    _watched.add(resource)


def _in_child() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for resource in tuple(_watched):
        _disowned.append(resource)
        for descriptor in resource.descriptors():
            os.dup2(null, descriptor)  # not closed: the number would soon be another file's
        resource.disown()
    os.close(null)
    _watched.clear()


os.register_at_fork(after_in_child=_in_child)
