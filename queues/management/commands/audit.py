"""``manage.py audit``: the audit chains from the shell."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS

from queues.audit import listing
from queues.audit.anchor import Anchor
from queues.audit.anchor_file import AnchorFile
from queues.audit.anchoring import anchor_all
from queues.audit.chains import get_chain, seal, waiting
from queues.audit.export import export
from queues.audit.signing import signer
from queues.audit.verify import Verification, VerificationProgress, attempt, chain_names, read_copies, verifying
from queues.errors import BrokerError
from queues.management.shell import REFUSED, USAGE, SubcommandCommand, bar, number, terminal_line


class Command(SubcommandCommand):
    """Verify, show and export the audit chains."""

    help = (
        "The audit chains: peerbus (every letter between peers), operators (what they did) and queue:NAME for each "
        "audited queue. Exit status: 0 done or all right, 1 refused, not found or a chain is broken, 2 usage."
    )

    refusals = (BrokerError, OSError)

    def add_arguments(self, parser: CommandParser) -> None:
        do = parser.add_subparsers(dest="do", required=True, metavar="verify|show|export|anchor|key")
        check = do.add_parser("verify", help="read the chains from beginning to end; report the first broken seq")
        check.add_argument(
            "--anchors", metavar="FILE", action="append", default=[],
            help="a copy of anchors.jsonl that was kept elsewhere; several",
        )  # fmt: skip
        show = do.add_parser("show", help="the chains; the last rows of one; the rows of a message")
        show.add_argument("--id", metavar="RECORD", help="the rows of one message or record")
        show.add_argument("--limit", type=number(1), default=20, metavar="N", help="most rows; default: %(default)s")
        out = do.add_parser("export", help="the rows as JSON lines, enough to compute the hashes again")
        out.add_argument("--from", dest="low", type=_seq, default=0, metavar="SEQ", help="the first; default: 0")
        out.add_argument("--to", dest="high", type=_seq, metavar="SEQ", help="the last; default: all")
        anchor = do.add_parser("anchor", help="sign the heads now")
        key = do.add_parser("key", help="the public key and its fingerprint")
        for one in (check, show, out):
            one.add_argument("--chain", metavar="NAME", help="only this one, for example peerbus")
        for one in (check, show, anchor, key):
            one.add_argument("--json", action="store_true", help="print JSON")

    def do_verify(self, options: dict[str, Any]) -> None:
        copies = read_copies(*(AnchorFile(Path(name)) for name in options["anchors"]))
        names = [options["chain"]] if options["chain"] else chain_names(copies)
        outcomes: list[Verification] = []
        try:
            for name in names:
                outcomes.append(self._verify(name, copies))
                if not options["json"]:
                    self.say(_outcome_text(outcomes[-1]))
        except KeyboardInterrupt:
            raise CommandError("Interrupted; unfinished results are discarded.", returncode=REFUSED) from None
        if options["json"]:
            self.say_json([_outcome_json(outcome) for outcome in outcomes])
        elif not names:
            self.say("0 rows: there are no audit chains yet.")
        if not options["chain"] and (others := {copy.chain for copy in copies}.difference(names)):
            chains = ", ".join(sorted(others))
            self.stderr.write(f"Left out, since only other databases have them: copies of anchors of {chains}.")
        self._tell_waiting()
        if broken := _broken_text(outcomes):
            raise CommandError(broken, returncode=REFUSED)

    def _verify(self, name: str, copies: list[Anchor]) -> Verification:
        with terminal_line(self.stderr) as show:
            return attempt(name, verifying(name, copies), lambda progress: show(_progress_text(name, progress)))

    def do_show(self, options: dict[str, Any]) -> None:
        seal()
        if options["id"] is not None or options["chain"] is not None:
            chain = None if options["chain"] is None else get_chain(options["chain"])
            rows = listing.rows(chain, options["id"], options["limit"])
            found: list[dict[str, Any]] = [listing.row_values(row) for row in rows]
        else:
            found = listing.chains()
        nothing = "There are no such rows." if options["id"] else "There are no audit chains yet."
        self.say_list(options["json"], found, nothing)
        self._tell_waiting()

    def do_export(self, options: dict[str, Any]) -> None:
        if options["chain"] is None and (options["low"] or options["high"] is not None):
            raise CommandError("--from and --to are of one chain: name it with --chain.", returncode=USAGE)
        for name in [options["chain"]] if options["chain"] else chain_names():
            for row in export(name, options["low"], options["high"]):
                self.say(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
        self._tell_waiting()

    def do_anchor(self, options: dict[str, Any]) -> None:
        seal()
        anchors = anchor_all()
        if options["json"]:
            self.say_json([{"chain": a.chain, "number": a.number, "seq": a.seq, "hash": a.hash.hex()} for a in anchors])
        for anchor in [] if options["json"] else anchors:
            self.say(f"{anchor.chain}: anchor {anchor.number} at seq {anchor.seq}")
        if not anchors:
            self.stderr.write("No chain has grown since its last anchor.")

    def do_key(self, options: dict[str, Any]) -> None:
        by = signer()
        if options["json"]:
            self.say_json({"public_key": by.public_text, "fingerprint": by.fingerprint})
        else:
            self.say(f"public key   {by.public_text}\nfingerprint  {by.fingerprint}")

    def _tell_waiting(self) -> None:
        if left := sum(waiting(DEFAULT_DB_ALIAS).values()):
            self.stderr.write(f"{left} events wait in the journal; they come into their chains next time.")


def _seq(text: str) -> int:
    """An argument: the number of a row."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is no row's number")
    return int(text)


def _progress_text(name: str, progress: VerificationProgress) -> str:
    share = progress.done / progress.total if progress.total else 1.0
    return f"{name} {bar(share)} {share:4.0%} of {progress.total:,} rows"


def _outcome_text(outcome: Verification) -> str:
    if outcome.ok:
        parts = [f"{outcome.chain}: {outcome.rows:,} rows are right", f"anchors that agree: {outcome.anchors:,}"]
        if outcome.dropped:
            parts.append(f"{outcome.dropped:,} rows before them were dropped by retention")
        return ", ".join(parts)
    lines = [f"{outcome.chain}: {outcome.fault}"]
    lines += [f"{outcome.chain}: also at seq {finding.seq}: {finding}" for finding in outcome.findings[1:10]]
    if len(outcome.findings) > 10:
        lines.append(f"{outcome.chain}: and {len(outcome.findings) - 10} findings more")
    return "\n".join(lines)


def _broken_text(outcomes: list[Verification]) -> str:
    """The chains that are wrong, or could not be read; empty when there is none."""
    broken = ", ".join(f"{outcome.chain} at seq {outcome.finding.seq}" for outcome in outcomes if outcome.finding)
    unread = ", ".join(outcome.chain for outcome in outcomes if outcome.error)
    texts = [f"Broken: {broken}." if broken else "", f"Not read to its end: {unread}." if unread else ""]
    return " ".join(filter(None, texts))


def _outcome_json(outcome: Verification) -> dict[str, Any]:
    if outcome.error:
        return {"chain": outcome.chain, "ok": False, "error": outcome.error}
    first = outcome.finding
    return {
        "chain": outcome.chain, "ok": outcome.ok, "rows": outcome.rows, "dropped": outcome.dropped,
        "anchors": outcome.anchors, "seconds": round(outcome.seconds, 3), "broken_seq": first.seq if first else None,
        "finding": str(first) if first else None,
        "findings": [{"kind": found.kind, "seq": found.seq, "text": found.text} for found in outcome.findings],
    }  # fmt: skip
