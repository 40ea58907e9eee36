"""A worker's job: what its handler sees, and the answer that its outcome gives."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from wire.overhop import requests
from wire.overhop.requests import Quest, Request

logger = logging.getLogger("wire.overhop.worker")


class Retry(Exception):
    """Raise it in a handler to fail the attempt and have the next after `seconds`, if any attempt is left."""

    def __init__(self, seconds: float, error: str | None = None) -> None:
        """`error`: the text to keep with the job. Raises ValueError for an invalid time."""
        requests.milliseconds("seconds", seconds)
        super().__init__(error or f"to be tried again in {seconds} s")
        self.seconds = seconds


class Context:
    """A job as its handler sees it."""

    def __init__(self, quest: Quest) -> None:
        #: As the broker sent it.
        self.quest = quest
        self.payload = quest.payload
        self.jid = quest.jid
        self.queue = quest.queue
        #: 1 for the first.
        self.attempt = quest.attempt
        self.max_attempts = quest.max_attempts
        #: When another worker would get the job without a heartbeat, by the broker's clock.
        self.deadline = quest.deadline


class AsyncJobContext(Context):
    """A job, as its async handler sees it."""

    def __init__(self, quest: Quest, tell: Callable[[Request[None]], Awaitable[None]]) -> None:
        super().__init__(quest)
        self._tell = tell
        #: True once the job is not ours any more: its answer will be dropped, so the handler may give up.
        self.lost = False

    async def beat(self) -> None:
        """Move the deadline now. It is also moved in the background while the handler runs."""
        await self._tell(requests.beat(self.jid))

    async def log(self, line: str) -> None:
        """Keep a line of text with the job; it is dropped if the job is lost. Raises Unencodable if it is no text."""
        await self._tell(requests.log(self.jid, str(line)))


class JobContext(Context):
    """A job, as its handler sees it. To be used in any thread."""

    def __init__(self, inner: AsyncJobContext, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        super().__init__(inner.quest)
        self._inner = inner
        self._loop = loop
        self._timeout = timeout

    @property
    def lost(self) -> bool:
        """True once the job is not ours any more: its answer will be dropped, so the handler may give up."""
        return self._inner.lost

    def beat(self) -> None:
        """Move the deadline now. It is also moved in the background while the handler runs."""
        self._wait_for(self._inner.beat)

    def log(self, line: str) -> None:
        """Keep a line of text with the job; it is dropped if the job is lost. Raises Unencodable if it is no text."""
        self._wait_for(functools.partial(self._inner.log, line))

    def _wait_for(self, call: Callable[[], Any]) -> None:
        steps = call()
        try:
            sent = asyncio.run_coroutine_threadsafe(steps, self._loop)
        except RuntimeError:  # the loop is closed: the worker has stopped without this job
            steps.close()
            return
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            sent.result(self._timeout)


Handler = Callable[[JobContext], Any]
AsyncHandler = Callable[[AsyncJobContext], Awaitable[Any]]


async def outcome(handler: AsyncHandler, context: AsyncJobContext) -> Request[None]:
    """Do a job and return the request that answers it."""
    try:
        return requests.done(context.jid, await handler(context))
    except Retry as retry:
        return requests.fail(context.jid, str(retry), retry.seconds)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # cancelled by the worker
        return _failed(context, error)
    except Exception as error:
        return _failed(context, error)


def _failed(context: AsyncJobContext, error: BaseException) -> Request[None]:
    logger.warning("job %s: attempt %d failed", context.jid, context.attempt, exc_info=error)
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return requests.fail(context.jid, text, None)
