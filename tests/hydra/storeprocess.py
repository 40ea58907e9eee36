"""A process that runs a node: it goes from term to term, and prints each when it is committed.

python -m tests.hydra.storeprocess CONNINFO NAME
"""

from __future__ import annotations

import asyncio
import sys
from random import Random

from hydra.protocol.effects import StoredNode
from hydra.storage.node_row import NodeStore, StoreHandlers


async def main(conninfo: str, name: str) -> None:
    handlers = StoreHandlers(on_lost=print, on_back=lambda: None, on_failed=print, on_command=print)
    store = await NodeStore.open(name, conninfo, handlers, rng=Random(name))
    for term in range(1, 1_000_000):
        await store.write(StoredNode(store.stored.voter, term, term + 100))
        print(term, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
