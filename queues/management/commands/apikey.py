"""``manage.py apikey``: the keys that programs show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from queues.management.shell import REFUSED, USAGE, SubcommandCommand, seconds, secret_from
from queues.models import ApiKey, ApiKeyUse
from queues.operations import keys
from queues.operations.audit_log import record, record_id, shell_operator


class Command(SubcommandCommand):
    """Create, list, grant, rotate and revoke API keys."""

    help = (
        "API keys are what programs authenticate with. Only a digest of a key is stored: it is shown once. "
        "Exit status: 0 done, 1 refused or not found, 2 usage."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        do = parser.add_subparsers(dest="do", required=True, metavar="create|list|grant|rotate|revoke")
        create = do.add_parser(
            "create",
            help="make a key and print it, this once",
            description="Make a key and print it, this once. It may do what the patterns of --publish, --consume and "
            "--manage allow, '*' being everything, and without one of them nothing.",
        )
        create.add_argument("name", metavar="NAME", help="its name; unique")
        value = create.add_mutually_exclusive_group()
        value.add_argument("--key", metavar="VALUE", help="the key itself (default: 256 random bits); ps shows it")
        value.add_argument("--key-file", metavar="FILE", help="a file with the key; - is standard input")
        grant = do.add_parser(
            "grant", help="change what a key may do: what is given takes the place of what was there, '' is nothing"
        )
        grant.add_argument("name", metavar="NAME")
        for one in (create, grant):
            _add_scopes(one)
        listing = do.add_parser("list", help="show all keys with their last log-in, without their values")
        rotate = do.add_parser(
            "rotate", help="give a key another value and print it, this once; the one before is accepted for a while"
        )
        rotate.add_argument("name", metavar="NAME")
        rotate.add_argument(
            "--grace", type=seconds, default=86_400.0, metavar="SECONDS",
            help="the time for which the value before is accepted (default: a day)",
        )  # fmt: skip
        for one in (create, grant, listing, rotate):
            one.add_argument("--json", action="store_true", help="print JSON")
        revoke = do.add_parser("revoke", help="make a key useless; its live connections end within a second")
        revoke.add_argument("name", metavar="NAME")

    def do_create(self, options: dict[str, Any]) -> None:
        given = options["key"] if options["key_file"] is None else secret_from(options["key_file"])
        with transaction.atomic():
            row, key = keys.create_key(
                options["name"], given, **{"publish": (), "consume": ()} | _scopes(options)
            )
            record(shell_operator(), "add", record_id(row))
        if problem := keys.weakness(key):
            self.stderr.write(f"Warning: {problem}")
        self._say_key(row, key, options["json"])
        self._warn_of_nothing(row)

    def do_grant(self, options: dict[str, Any]) -> None:
        given = _scopes(options)
        if not given:
            raise CommandError("Give --protocol, --publish, --consume or --manage.", returncode=USAGE)
        with _known(options["name"]), transaction.atomic():
            row = keys.grant_key(options["name"], **given)
            record(shell_operator(), "change", record_id(row))
        if options["json"]:
            self.say_json(_shown(row))
        else:
            self.say_values(False, {name: getattr(row, name) for name in keys.SCOPES})
        self._warn_of_nothing(row)

    def do_list(self, options: dict[str, Any]) -> None:
        values = [_shown(row) for row in keys.list_keys()]
        for value in [] if options["json"] else values:
            value["protocols"] = value["protocols"] or "all"
            if last := value["last_login"]:
                value["last_login"] = ApiKeyUse(**last)
        names = ("name", "hint", "protocols", "publish", "consume", "manage", "created_at", "revoked_at", "last_login")
        self.say_list(options["json"], values, "There are no API keys.", names)

    def do_rotate(self, options: dict[str, Any]) -> None:
        with _known(options["name"]), transaction.atomic():
            row, key = keys.rotate_key(options["name"], timedelta(seconds=options["grace"]))
            record(shell_operator(), "rotate", record_id(row))
        self._say_key(row, key, options["json"])

    def do_revoke(self, options: dict[str, Any]) -> None:
        with _known(options["name"]), transaction.atomic():
            record(shell_operator(), "revoke", record_id(keys.revoke_key(options["name"])))
        self.say("revoked")

    def _warn_of_nothing(self, row: ApiKey) -> None:
        if not (row.publish or row.consume or row.manage):
            self.stderr.write(
                f"It may do nothing yet. Grant it something: apikey grant {row.name} --publish 'orders*' "
                "--consume 'orders*'"
            )

    def _say_key(self, row: ApiKey, key: str, as_json: bool) -> None:
        """Print a key, this once."""
        if as_json:
            self.say_json({**_shown(row), "key": key})
        else:
            self.say(key)
            self.stderr.write("This is the key. It is not shown again.")


def _add_scopes(parser: CommandParser) -> None:
    parser.add_argument(
        "--protocol", action="extend", nargs="+", choices=keys.PROTOCOLS, metavar="P",
        help=f"protocols it is good for: {', '.join(keys.PROTOCOLS)} (default: all)",
    )  # fmt: skip
    for action, what in (
        ("publish", "queues and topics it may publish to"),
        ("consume", "queues and topics it may consume from"),
        ("manage", "queues it may create, pause, purge and delete"),
    ):
        parser.add_argument(
            f"--{action}", action="extend", nargs="+", metavar="PATTERN", help=f"{what}: globs such as 'orders*'"
        )


def _scopes(options: dict[str, Any]) -> dict[str, list[str]]:
    """The scopes that were given, by their names; an empty text stands for none."""
    given = {"protocols": options["protocol"]} | {name: options[name] for name in ("publish", "consume", "manage")}
    return {name: [one for one in value if one] for name, value in given.items() if value is not None}


@contextmanager
def _known(name: str) -> Iterator[None]:
    """Raises CommandError when there is no such key."""
    try:
        yield
    except ApiKey.DoesNotExist as error:
        raise CommandError(f"There is no API key {name!r}.", returncode=REFUSED) from error


def _shown(row: ApiKey) -> dict[str, Any]:
    fields = ("name", "hint", "protocols", "publish", "consume", "manage", "created_at", "revoked_at", "old_until")
    use = getattr(row, "use", None)
    last = None if use is None else {"at": use.at, "protocol": use.protocol, "address": use.address}
    return {**{field: getattr(row, field) for field in fields}, "last_login": last}

