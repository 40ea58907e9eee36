"""Peerbus over standard input and output: a bridge between lines and a WebSocket, byte for byte.

For programs that can write lines but speak no WebSocket. They speak the protocol themselves, from the register on;
only a token that their register leaves out is put in, so that they need not know it.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from peers.codec.lines import frames_of, line
from peers.codec.parsing import MalformedJson, loads
from peers.errors import LineTooLong
from wire.client.errors import ConnectionLost


def with_token(register: bytes, token: str | None) -> bytes:
    """Return a register frame with the token in it, if it has none; any other frame as it is."""
    try:
        fields = loads(register)
    except MalformedJson:
        return register
    if token is None or not isinstance(fields, dict) or fields.get("type") != "register" or fields.get("token"):
        return register
    return json.dumps(fields | {"token": token}).encode()


@dataclass
class Pipe:
    """Both directions of the bridge; `readline` is that of a binary file, and `write` takes all."""

    connection: ClientConnection
    readline: Callable[[int], bytes]
    write: Callable[[bytes], object]
    token: str | None
    _finished: bool = False
    _error: LineTooLong | OSError | None = None

    def run(self) -> None:
        """Bridge until the end of input; frames of the broker are written until then.

        Raises ConnectionLost with the broker's reason if it closes before, LineTooLong for a line over 1 MiB, OSError
        when the input cannot be read.
        """
        # A daemon: nothing can wake a thread that waits for input, when the broker has closed.
        threading.Thread(target=self._send_lines, daemon=True).start()
        try:
            while True:
                message = self.connection.recv()
                if isinstance(message, str):  # binary messages have no meaning
                    self.write(line(message.encode()))
        except ConnectionClosed as closed:
            if self._error is not None:
                raise self._error from None
            if not self._finished:
                raise ConnectionLost(_how(closed)) from None

    def _send_lines(self) -> None:
        try:
            for frame in frames_of(self.readline):
                self.connection.send(with_token(frame, self.token) if self.token else frame, text=True)
                self.token = None  # only the first frame is a register
            self._finished = True
            self.connection.close()
        except ConnectionClosed:
            pass  # the other direction says why
        except (OSError, LineTooLong) as error:
            self._error = error
            self.connection.close()


def _how(closed: ConnectionClosed) -> str:
    if closed.rcvd is None:
        return "the connection to the broker is lost"
    return f"the broker closed the connection: {closed.rcvd.reason or 'no reason given'} ({closed.rcvd.code})"
