"""An IRC server for tests: that of the `irc` package as a child process, `python -m tests.hydra.irc.server [PORT]`.

    with IrcServerProcess() as server:
        ...  # server.host, server.port

It knows PASS, NICK, USER, PING, JOIN, PART, PRIVMSG, NOTICE, TOPIC, ISON and QUIT, and here KICK, MODE and KILL too.
It writes its port to standard output when it listens, and ends with SIGTERM, or when its standard input is closed, so
that it does not outlive a test run that was killed.

What it cannot do: cut lines at 512 bytes, take lines that are not UTF-8 (it ends that connection), ask for a password,
wait for USER before it welcomes, limit a flood, TLS, tags. For those there is `tests/hydra/irc/scripted.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import threading
from typing import Any

from irc import events  # type: ignore[import-untyped]
from irc.server import IRCClient, IRCError, IRCServer  # type: ignore[import-untyped]

from tests.process import Process


class Client(IRCClient):  # type: ignore[misc]
    """The package's side of a connection. It does not spin while nothing happens, and knows some more commands."""

    def _handle_one(self) -> None:
        wants_to_write = [self.request] if self.send_queue else []
        readable, writable, _ = select.select([self.request], wants_to_write, [], 0.005)
        while self.send_queue and writable:
            self._send(self.send_queue.pop(0))
        if readable:
            self._handle_incoming()

    def _send(self, msg: str) -> None:
        with contextlib.suppress(OSError):  # who is gone will be seen to be when it is read from
            self.request.sendall(msg.encode() + b"\r\n")

    def handle_pass(self, params: str) -> None:
        """Any password will do."""

    def handle_mode(self, params: str) -> str:
        """Tell all clients; there are no modes."""
        return self._tell(params.partition(" ")[0], f":{self.client_ident()} MODE {params}")

    def handle_kick(self, params: str) -> str:
        """Remove a client from a channel: any client may."""
        name, nick, reason = [*params.split(" ", 2), "", ""][:3]
        answer = self._tell(name, f":{self.client_ident()} KICK {name} {nick} {reason or ':' + nick}")
        channel, kicked = self.server.channels[name], self.server.clients.get(nick)
        channel.clients.discard(kicked)
        if kicked is not None:
            kicked.channels.pop(name, None)
        return answer

    def handle_kill(self, params: str) -> None:
        """Close a client's connection: any client may."""
        victim = self.server.clients.get(params.partition(" ")[0])
        if victim is not None:
            victim.request.shutdown(2)

    def handle_quit(self, params: str) -> None:
        """Close the connection, as servers do."""
        super().handle_quit(params)
        self.send_queue.clear()
        self._send(f"ERROR :Closing link: {params.lstrip(':')}")
        raise self.Disconnect

    def _tell(self, name: str, message: str) -> str:
        channel = self.server.channels.get(name)
        if channel is None or self not in channel.clients:
            raise IRCError(events.codes["notonchannel"], f"{name} :You're not on that channel")
        self._send_to_others(message, channel)
        return message

    def _send_to_others(self, message: str, channel: Any) -> None:
        for client in list(channel.clients - {self}):
            client.send_queue.append(message)


class Server(IRCServer):  # type: ignore[misc]
    """Says nothing of connections that break."""

    def handle_error(self, request: object, client_address: object) -> None:
        """A client's thread has failed: that client is gone."""


def serve(port: int) -> None:
    """Serve until SIGTERM, or until the other end of standard input is closed."""
    logging.disable(logging.CRITICAL)
    server = Server(("127.0.0.1", port), Client)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    os._exit(0)


class IrcServerProcess(Process):
    """The server as a child process. With a port, another one like it can follow on the same address."""

    host = "127.0.0.1"

    def __init__(self, port: int = 0) -> None:
        super().__init__(sys.executable, "-m", "tests.hydra.irc.server", str(port))
        self.wait_ready()
        self.port = int(self.lines[0])

    @property
    def ready(self) -> bool:
        """Whether it has said its port."""
        return bool(self.lines)

    def stop(self, number: int = signal.SIGKILL) -> int:
        """End it, and all its connections; the exit status."""
        return super().stop(number)


if __name__ == "__main__":
    serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
