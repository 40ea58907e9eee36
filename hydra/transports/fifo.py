"""Links over two named pipes (docs/protocols/hydra.md, "Named pipes"): one at a time, with the proof of the secret.

The listener reads NAME.in and writes NAME.out, the dialler the reverse; it locks NAME.out while the link lasts, so that
no other node dials. All pipes are opened without waiting:

- The dialler opens NAME.out for reading, then NAME.in for writing, which fails without a listener, and writes a
  `LinkStart`. The listener then opens NAME.out and answers with the same one. The link is open then.
- A pipe without a writer has ended, and is reported as readable for ever. So a reader without a link has its own pipe
  open for writing, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from typing import Final

from hydra import clock
from hydra.transports.address import FifoAddress
from hydra.transports.base import Accept, TransportError, TransportOptions
from hydra.transports.error_texts import CLOSED
from hydra.transports.fifo_framing import TOKEN_SIZE, FifoDecoder, LinkStart
from hydra.transports.pipes import PipeReader, PipeWriter, make_pipe, open_writer
from hydra.transports.stream import StreamLink
from queues.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

#: Seconds after which a listener whose pipes were removed tries again to make them.
RETRY: Final = 1.0


async def dial_fifo(address: FifoAddress, options: TransportOptions, opened: Accept) -> None:
    """Open a link to the listener of these pipes. Raises TransportError."""
    try:
        link = _FifoDialler(address, options, opened).link
        try:
            await link.outcome
        except BaseException:
            link.give_up("no longer wanted")
            raise
    except TransportError as error:
        raise TransportError(f"{address}: {error}") from error


class FifoListener:
    """Accepts one link at a time."""

    def __init__(self, address: FifoAddress, options: TransportOptions, accept: Accept) -> None:
        """Raises TransportError."""
        self.address = str(address)
        self._address = address
        self._options = options
        self._accept = accept
        self._loop = asyncio.get_running_loop()
        self._made: list[str] = []
        self._pipe: PipeReader | None = None
        self._link: StreamLink | None = None
        self._decoder = FifoDecoder()
        self._listening = True
        self._retry: asyncio.TimerHandle | None = None
        self._throttle = LogThrottle()
        self._open()

    async def close(self) -> None:
        """Accept no more links, and remove the pipes made here; an open link stays."""
        self._listening = False
        if self._retry is not None:
            self._retry.cancel()
        if self._pipe is not None:
            self._remove()
        if self._link is not None:
            self._link.give_up("the listener is closed")  # an open one stays
        if self._link is None:
            self._close_pipe()

    # The pipes.

    def _open(self) -> None:
        try:
            for path in (self._address.inward, self._address.outward):
                if make_pipe(path):
                    self._made.append(path)
            self._pipe = PipeReader(self._address.inward, "another node listens there")
        except BaseException:
            self._remove()
            raise
        self._pipe.start(self._received)

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _remove(self) -> None:
        while self._made:
            with contextlib.suppress(OSError):
                os.unlink(self._made.pop())

    def _reopen(self) -> None:
        self._close_pipe()
        self._made = [path for path in self._made if path != self._address.inward]  # it is gone, or another process'
        try:
            self._open()
        except TransportError as error:
            logger.error("%s: no links for %g s: %s", self._address, RETRY, error)
            self._retry = self._loop.call_later(RETRY, self._reopen)

    def _received(self, data: bytes) -> None:
        if not data:
            self._left()
            return
        for part in self._decoder.feed(data):
            if isinstance(part, LinkStart):
                self._end_link("another link has begun")
                self._begin(part)
            elif self._link is not None:
                self._link.data_received(part)

    def _left(self) -> None:
        """All writers have closed the pipe."""
        self._end_link(CLOSED)
        if self._pipe is None:
            return
        try:
            self._pipe.keep()
        except TransportError as error:
            logger.warning("%s; the pipes are recreated", error)
            self._reopen()

    # The link.

    def _begin(self, start: LinkStart) -> None:
        if not start.token or not self._listening or self._pipe is None:
            return
        try:
            fd = open_writer(self._address.outward)
        except TransportError as error:
            self._refused(str(error))  # the dialler is gone again, or does not read
            return
        self._pipe.release()
        writer = PipeWriter(fd, broken=lambda: self._end_link(CLOSED), closed=self._link_closed)
        self._link = StreamLink(writer, self.address, self._options, self._accept, dialled=False)
        self._link.outcome.add_done_callback(self._report)
        writer.write(bytes(start))
        self._link.start()

    def _end_link(self, why: str) -> None:
        if self._link is not None:
            self._link.lost(why)

    def _link_closed(self) -> None:
        self._link = None
        if not self._listening:
            self._close_pipe()

    def _report(self, outcome: asyncio.Future[None]) -> None:
        if (error := outcome.exception()) is not None:
            self._refused(str(error))

    def _refused(self, why: str) -> None:
        if count := self._throttle.admit("refused", clock.now()):
            logger.warning("%s refused %d link(s): %s", self._address, count, why)


class _FifoDialler:
    """The dialler's end of one link."""

    def __init__(self, address: FifoAddress, options: TransportOptions, opened: Accept) -> None:
        """Raises TransportError."""
        self._decoder = FifoDecoder()
        self._start = LinkStart(secrets.token_hex(TOKEN_SIZE))
        self._pipe = PipeReader(address.outward, "another node is linked there")
        try:
            fd = open_writer(address.inward)
        except BaseException:
            self._pipe.close()
            raise
        writer = PipeWriter(fd, broken=self._left, closed=self._pipe.close)
        self.link = StreamLink(writer, str(address), options, opened, dialled=True)
        late = f"no answer within {options.connect_timeout:g} s"
        self._unanswered: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(
            options.connect_timeout, self.link.give_up, late
        )
        """None once the listener has answered."""
        self._pipe.start(self._received)
        writer.write(bytes(self._start))

    def _received(self, data: bytes) -> None:
        if not data:
            self._left()
            return
        for part in self._decoder.feed(data):
            if isinstance(part, LinkStart):
                self._answer(part)
            elif self._unanswered is None:
                self.link.data_received(part)

    def _answer(self, start: LinkStart) -> None:
        if self._unanswered is None:
            self.link.lost("another link has begun")
        elif start == self._start:
            self._unanswered.cancel()
            self._unanswered = None
            self._pipe.release()
            self.link.start()

    def _left(self) -> None:
        """The listener has closed its end."""
        if self._unanswered is None:
            self.link.lost(CLOSED)
        else:
            self.link.give_up(CLOSED)
