"""Stopping the server."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from tests.peers.web.serving import TEXT, Frame, Server, close_frame, frame, running
from tests.waiting import PATIENCE, wait_until


@pytest.mark.parametrize("kind", ["daphne", "tls"])
def test_every_client_is_told_1001_after_the_callbacks_have_run(kind: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with running(kind, NOTES=str(notes)) as server, server.raw("raw") as raw, server.connect("client") as client:
        raw.send(frame(b"echo on"))
        assert raw.read() == Frame(TEXT, b"on")
        client.send("echo on")
        assert client.recv() == "on"
        with server.connect("", "/plain") as plain:  # whose application ends at once
            plain.send("on")
            assert plain.recv() == "on"
            assert server.stop() == 0
        assert raw.take(14) == close_frame(1001, "going away")
        with pytest.raises(ConnectionClosed) as caught:
            client.recv()
    assert caught.value.rcvd is not None
    assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1001, "going away")
    assert notes.read_text() == "first 2\nsecond 2\n"
    assert "LookupError: a callback that fails" in server.log


def test_a_client_that_does_not_read_does_not_hold_up_the_stop() -> None:
    linger = str(10 * PATIENCE)  # `stop` would not wait for it
    with running("daphne", LINGER=linger) as server, server.raw("deaf", buffer=1 << 12) as client:
        client.send(frame(b"send 400 30000"))
        server.heard("deaf", "send 400 30000")
        assert server.stop() == 0


def refuses(server: Server) -> bool:
    try:
        socket.create_connection(server.address).close()
    except ConnectionRefusedError:
        return True
    return False


def test_no_connection_is_accepted_while_the_callbacks_run(tmp_path: Path) -> None:
    notes, go_on = tmp_path / "notes", tmp_path / "go-on"
    with running("daphne", NOTES=str(notes), HOLD=str(go_on)) as server:
        server.state("absent")  # it answers, and has set up its signals
        server.send_signal(signal.SIGTERM)
        wait_until(notes.exists, "the first callback")
        wait_until(lambda: refuses(server), "the end of listening")  # which may come a turn of the loop later
        go_on.touch()
        assert server.stop() == 0


def test_under_uvicorn_the_callbacks_run_too(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with running("uvicorn", NOTES=str(notes)) as server, server.connect("client") as client:
        client.send("echo on")
        assert client.recv() == "on"
        server.stop()
        with pytest.raises(ConnectionClosed) as caught:
            client.recv()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1012  # uvicorn's own choice
    assert notes.read_text() == "first 0\nsecond 0\n"
