"""What a queue's settings mean for one message."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """A queue's policy. Times are seconds; None is no limit; `max_attempts` 0 is no limit."""

    id: int
    name: str
    paused: bool
    refuse_when_paused: bool
    concurrency_limit: int | None
    max_attempts: int
    retry_backoff: float
    retry_backoff_cap: float
    ack_timeout: float | None
    message_ttl: float | None
    max_length: int | None
    overflow: str
    retention: str
    dead_letter_queue_id: int | None
    allow_job_overrides: bool = True
    uuid: str = ""
    audited: bool = False

    @property
    def may_lease_on_publish(self) -> bool:
        """Whether a new message may go to memory at once; a queue with limits is delivered by claims only."""
        return not self.paused and self.concurrency_limit is None and self.max_length is None

    @property
    def taken_as_asked(self) -> bool:
        """Whether no more is taken into memory than consumers ask for: what waits there would count as being worked on
        though no consumer has it, or could not be dropped though it is the oldest."""
        return self.concurrency_limit is not None or (self.max_length is not None and self.overflow == "drop-oldest")

    def backoff(self, attempts: int, own: float | None = None) -> float:
        """Seconds to wait after the `attempts`-th failed delivery (1, 2, …); `own` is a message's, always the same."""
        if own is not None:
            return own
        return min(self.retry_backoff * 2.0 ** min(attempts - 1, 60), self.retry_backoff_cap)

    def exhausted(self, attempts: int, own_limit: int | None) -> bool:
        """Whether a message is given up after `attempts` failed deliveries."""
        limit = self.max_attempts if own_limit is None else own_limit
        return 0 < limit <= attempts
