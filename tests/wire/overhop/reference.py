"""MessagePack read slowly and plainly, as Overhop restricts it: what the codec's two ways are compared with."""

from typing import Any

from wire.overhop.codec.msgpack_check import MAX_DEPTH, MAX_ELEMENTS


class Refused(Exception):
    """Overhop does not accept these bytes."""


class Reader:
    """Reads one value recursively, byte by byte."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.elements = 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise Refused("ends early")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "big", signed=signed)

    def value(self, depth: int = 0) -> Any:
        self.elements += 1
        if self.elements > MAX_ELEMENTS:
            raise Refused("elements")
        head = self.number(1)
        if head in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[head]
        if head < 0x80 or head >= 0xE0:
            return head if head < 0x80 else head - 0x100
        if head < 0xA0 or head >= 0xDC:
            return self.container(head, depth + 1)
        if head < 0xC0 or head in (0xD9, 0xDA, 0xDB):
            return self.text(head & 0x1F if head < 0xC0 else self.number(1 << (head - 0xD9)))
        if head in (0xC4, 0xC5, 0xC6):
            return self.take(self.number(1 << (head - 0xC4)))
        if 0xCC <= head <= 0xD3:
            value = self.number(1 << ((head - 0xCC) % 4), signed=head >= 0xD0)
            if value < 2**63:
                return value
        raise Refused(f"head {head:#x}")

    def text(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise Refused("UTF-8") from None

    def container(self, head: int, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise Refused("depth")
        count = head & 0x0F if head < 0xA0 else self.number(2 if head in (0xDC, 0xDE) else 4)
        if 0x90 <= head < 0xA0 or head in (0xDC, 0xDD):
            return [self.value(depth) for _ in range(count)]
        result = {}
        for _ in range(count):
            key = self.value(depth)
            if not isinstance(key, str):
                raise Refused("key")
            result[key] = self.value(depth)
        return result


def read(data: bytes) -> Any:
    """Return the one value in `data`; raise Refused."""
    reader = Reader(data)
    value = reader.value()
    if reader.at != len(data):
        raise Refused("bytes left")
    return value
