"""Operators' requests to nodes, through the database."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import transaction

from hydra.notifications import CHANNEL, CommandAction, OperatorCommand, parse_command
from hydra.operations import send
from hydra.storage.database import conninfo_from_settings

RUN = UUID(int=7)
FIELDS = {"node": "alpha", "run": str(RUN), "action": "drop", "by": "anna", "number": 12}


@pytest.mark.parametrize(
    ("action", "number", "words"),
    [
        (CommandAction.RESIGN, None, "anna asks to stop leading"),
        (CommandAction.DROP, 12, "anna asks to drop node 12"),
        (CommandAction.DISCONNECT_LINK, 3, "anna asks to close link 3"),
    ],
)
@pytest.mark.django_db(transaction=True)
def test_a_command_arrives_as_it_was_sent_and_only_after_the_commit(
    action: CommandAction, number: int | None, words: str
) -> None:
    command = OperatorCommand(node="alpha", run=RUN, action=action, by="anna", number=number)
    with psycopg.connect(conninfo_from_settings(), autocommit=True) as listener:
        listener.execute(f"listen {CHANNEL}".encode())
        with transaction.atomic():
            send(command)
            assert [*listener.notifies(timeout=0.1)] == []
        [notification] = listener.notifies(timeout=10, stop_after=1)
    assert parse_command(notification.payload) == command
    assert str(command) == words


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "explode"}, {"action": None}, {"number": "12"}, {"number": None}, {"number": True}, {"node": 7},
        {"run": "alpha"}, {"run": 7}, {"by": 7}, {"action": "resign"},
    ],
)  # fmt: skip
def test_an_unknown_command_is_refused(fields: dict[str, Any]) -> None:
    parse_command(json.dumps(FIELDS))
    with pytest.raises(ValueError, match=r"\S"):
        parse_command(json.dumps({**FIELDS, **fields}))


@pytest.mark.parametrize("payload", ["", "{", "[]", "7", "null"])
def test_a_value_that_is_no_object_is_refused(payload: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_command(payload)
