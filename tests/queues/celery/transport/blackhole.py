"""A way to the database that stops carrying anything without a word, for tests that are not asynchronous."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queues.database.parameters import connection_parameters
from tests.hydra.proxy import Proxy, proxy_to


class BlackHole:
    """The way, and the broker's URL that goes by it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, proxy: Proxy, conninfo: str) -> None:
        self._loop = loop
        self._proxy = proxy
        at = conninfo_to_dict(conninfo)
        self.url = f"fivewire://{at['user']}:{at.get('password', '')}@127.0.0.1:{at['port']}/{at['dbname']}"

    def freeze(self) -> None:
        """Carry nothing from now on."""
        self._loop.call_soon_threadsafe(self._proxy.freeze)

    def thaw(self) -> None:
        """Carry what waits, and what comes."""
        self._loop.call_soon_threadsafe(self._proxy.thaw)


@contextlib.contextmanager
def black_hole() -> Iterator[BlackHole]:
    """A way to the test database."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    way = proxy_to(make_conninfo(**connection_parameters()))
    try:
        proxy, conninfo = asyncio.run_coroutine_threadsafe(way.__aenter__(), loop).result()
        yield BlackHole(loop, proxy, conninfo)
        asyncio.run_coroutine_threadsafe(way.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
