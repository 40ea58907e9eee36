"""Logging in to an account by SASL: what is said, and what every way to fail is called."""

from __future__ import annotations

import ssl
from base64 import b64decode, b64encode
from pathlib import Path

import pytest

from hydra.irc.settings import IrcAccount, IrcSettingsError, Mechanism
from tests.hydra.irc.client import Client
from tests.hydra.irc.scripted import ScriptedClient, ScriptedServer
from tests.wire.net.test_tls import Authority

PLAIN = IrcAccount(Mechanism.PLAIN, "fivewire", "s3cret word")
EXTERNAL = IrcAccount(Mechanism.EXTERNAL, "fivewire")
NEVER = 3600


async def asked(scripted: ScriptedServer, account: IrcAccount = PLAIN) -> tuple[Client, ScriptedClient]:
    """A client that has asked for the server's capabilities."""
    client = Client(scripted, "alpha", account=account, refused=NEVER, refused_most=NEVER)
    client.connection.connect()
    accepted = await scripted.client()
    assert await accepted.line() == b"CAP LS 302"
    assert [await accepted.line() for _ in range(2)] == [b"NICK alpha", b"USER hydra 0 * :Hydra"]
    return client, accepted


async def mechanism(accepted: ScriptedClient) -> bytes:
    """Offer SASL, and grant it; what the client asks for."""
    accepted.send(b":s CAP * LS * :multi-prefix\r\n:s CAP * LS :echo-message sasl=PLAIN,EXTERNAL\r\n")
    assert await accepted.line() == b"CAP REQ :sasl"
    accepted.send(b":s CAP * ACK :sasl\r\n")
    return await accepted.line()


async def test_plain_shows_the_accounts_password_before_the_welcome(scripted: ScriptedServer) -> None:
    client, accepted = await asked(scripted)
    assert await mechanism(accepted) == b"AUTHENTICATE PLAIN"
    accepted.send(b"AUTHENTICATE +\r\n")
    answer = (await accepted.line()).removeprefix(b"AUTHENTICATE ")
    assert b64decode(answer) == b"fivewire\0fivewire\0s3cret word"
    accepted.send(b":s 900 alpha alpha!u@h fivewire :You are now logged in\r\n:s 903 alpha :SASL successful\r\n")
    assert await accepted.line() == b"CAP END"
    accepted.send(b":s 001 alpha :Welcome\r\n")
    await client.wait_for(lambda: client.connections)


@pytest.mark.parametrize("size", [1, 200, 274, 275, 500])
async def test_a_long_answer_goes_in_lines_of_400_characters(scripted: ScriptedServer, size: int) -> None:
    account = IrcAccount(Mechanism.PLAIN, "a" * 13, "p" * min(size, 200))
    text = b64encode(f"{account.name}\0{account.name}\0{account.password}".encode())
    _, accepted = await asked(scripted, account)
    await mechanism(accepted)
    accepted.send(b"AUTHENTICATE +\r\n")
    lines: list[bytes] = []
    while not lines or len(lines[-1]) == 400:
        lines.append((await accepted.line()).removeprefix(b"AUTHENTICATE "))
    assert b"".join(line for line in lines if line != b"+") == text


async def test_external_shows_the_clients_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    own = ssl.create_default_context(cafile=str(authority.file))
    own.load_cert_chain(*authority.issue("client"))
    async with ScriptedServer(context) as server:
        server.host = "localhost"
        client = Client(server, "alpha", account=EXTERNAL, tls=own)
        client.connection.connect()
        accepted = await server.client()
        assert await accepted.line() == b"CAP LS 302"
        assert [(await accepted.line())[:4] for _ in range(2)] == [b"NICK", b"USER"]
        assert await mechanism(accepted) == b"AUTHENTICATE EXTERNAL"
        assert accepted.writer.get_extra_info("peercert")
        accepted.send(b"AUTHENTICATE +\r\n")
        assert await accepted.line() == b"AUTHENTICATE +"
        accepted.send(b":s 903 alpha :SASL successful\r\n:s 001 alpha :Welcome\r\n")
        await client.wait_for(lambda: client.connections)
        client.connection.leave("bye")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b":s CAP * LS :multi-prefix\r\n", "offers no SASL now"),
        (b":s CAP * LS :sasl=EXTERNAL\r\n", "offers SASL with EXTERNAL, not PLAIN"),
        (b":s CAP * LS :sasl\r\n:s CAP * NAK :sasl\r\n", "refuses SASL"),
        (b":s 421 alpha CAP :Unknown command\r\n", "knows no SASL"), (b":s 001 alpha :Welcome\r\n", "knows no SASL"),
        (b":s 904 alpha :SASL authentication failed\r\n", "the account fivewire by PLAIN: 904 SASL authentic"),
        (b":s 902 alpha :You must use a nick assigned to you\r\n", "902"), (b":s 905 * :too long\r\n", "905"),
        (b":s 906 * :aborted\r\n", "906"), (b":s 908 * EXTERNAL :are available\r\n", "908 EXTERNAL"),
    ],
)  # fmt: skip
async def test_a_login_that_fails_is_a_clear_error_and_not_tried_again_at_once(
    scripted: ScriptedServer, said: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    client, accepted = await asked(scripted)
    accepted.send(said)
    reason = await client.lost()
    assert words in reason
    assert "the next attempt is not before" in reason
    assert reason in caplog.text
    assert "s3cret" not in caplog.text
    client.connection.connect()  # as a node does soon
    await client.connection.loop.run_in_executor(None, lambda: None)
    assert scripted._accepted.empty()


async def test_the_password_is_shown_nowhere() -> None:
    assert "s3cret" not in repr(PLAIN) + str(PLAIN)


def test_plain_needs_a_password() -> None:
    with pytest.raises(IrcSettingsError, match="the password of the account fivewire is missing"):
        IrcAccount(Mechanism.PLAIN, "fivewire")
