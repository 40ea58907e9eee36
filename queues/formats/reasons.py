"""Fingerprints of failure reasons: what differs between messages is replaced, so that one cause is one group."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

#: Characters of a reason that are compared.
MAX_REASON: Final = 500
#: The group of messages without a reason.
NO_REASON: Final = "no reason was given"
#: Replaces every digit by 0, so that most differing reasons share one cache entry.
_ZEROED: Final = str.maketrans("123456789", "000000000")

#: The kinds of replaced parts, in order: characters of which one must be present, and the pattern with named
#: placeholders. An apostrophe within a word is not a quote.
_KINDS: Final = tuple(
    (frozenset(marks), re.compile(pattern))
    for marks, pattern in (
        (
            "'\"`“«",
            r"""(?P<value>'(?<!\w')(?:[^'\\]|\\.)*'(?!\w)|"(?<!\w")(?:[^"\\]|\\.)*"(?!\w)|`(?<!\w`)[^`]*`(?!\w)|“[^”]*”"""
            r"|«[^»]*»)",
        ),
        (
            "@:[",
            r"(?P<address>(?<![\w.+-])(?:[a-zA-Z][a-zA-Z0+.-]*://[^\s,;)\]}]+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
            r"|\[(?=[0a-fA-F:.]*:)[0a-fA-F:.]+\](?::0+)?)",
        ),
        (
            "0",
            r"(?<!\w)(?:(?P<id>[0a-fA-F]{8}-[0a-fA-F]{4}-[0a-fA-F]{4}-[0a-fA-F]{4}-[0a-fA-F]{12}(?!\w)"
            r"|[0a-fA-F]{32}(?!\w)|0x[0a-fA-F]+(?!\w)|(?=0*[a-fA-F])(?=[a-fA-F]*0)[0a-fA-F]{8,}(?!\w))"
            r"|(?P<time>0{4}-00-00(?:[T ]00:00(?::00(?:[.,]0+)?)?)?(?:Z|[+-]00:?00)?|00?:00:00(?:[.,]0+)?)"
            r"|(?P<address>(?<!\.)0{1,3}(?:\.0{1,3}){3}(?::0+)?(?![\w.])))",
        ),
        ("0", r"(?P<number>0+(?:[.,_]0+)*(?:[eE][-+]?0+\b)?)"),
    )
)


def fingerprint(text: str | None) -> str:
    """A reason with numbers, ids, times, addresses and quoted values replaced by placeholders such as `<number>`.

    Only the first `MAX_REASON` characters count. An empty reason gives `NO_REASON`. """
    return _of_zeros((text or "")[:MAX_REASON].translate(_ZEROED))


@lru_cache(maxsize=4096)
def _of_zeros(text: str) -> str:
    shown = " ".join(text.split())
    for marks, pattern in _KINDS:
        if not marks.isdisjoint(shown):
            shown = pattern.sub(lambda found: f"<{found.lastgroup}>", shown)
    return shown or NO_REASON
