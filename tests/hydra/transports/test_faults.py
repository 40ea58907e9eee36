"""Bytes that a link's reader cannot take cost that link alone, and are counted."""

from __future__ import annotations

from hydra.transports.base import TransportOptions
from hydra.transports.stream import StreamLink


class Channel:
    """Notes that it was closed at once."""

    aborted = False

    def write(self, data: bytes) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


class Reader:
    """Raises for the bytes `bad`."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.reasons: list[str] = []

    def received(self, data: bytes) -> None:
        if b"bad" in data:
            raise RecursionError("unforeseen")
        self.taken.append(data)

    def closed(self, reason: str) -> None:
        self.reasons.append(reason)


async def test_bytes_that_a_link_cannot_take_end_that_link_alone() -> None:
    faults: list[str] = []
    options = TransportOptions(fault=lambda unit, error: faults.append(f"{unit}: {error}"))
    channels, readers = (Channel(), Channel()), (Reader(), Reader())
    links = [
        StreamLink(channel, origin, options, lambda link, reader=reader: reader, dialled=False)  # type: ignore[misc]
        for channel, reader, origin in zip(channels, readers, ("192.0.2.1", "192.0.2.2"), strict=True)
    ]
    for link in links:
        link.start()
        link.data_received(b"PING\r\n")
    links[0].data_received(b"bad\r\n")
    links[1].data_received(b"PONG\r\n")
    assert faults == ["link with 192.0.2.1: unforeseen"]
    assert readers[0].reasons == ["a fault in what came over it: RecursionError"]
    assert [channel.aborted for channel in channels] == [True, False]
    assert readers[1].taken == [b"PING\r\n", b"PONG\r\n"]
