"""A process that runs management commands, one for each line of JSON that it reads, on the database of a running
broker: to start a process for each would take too long. Run it with `-m`.

An argument may have bytes that are no UTF-8, as half of a surrogate pair: that is how Python gets them. Standard
output is as strict as a process's own.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import traceback
from collections.abc import Iterator
from typing import TextIO


def main() -> None:
    """Answer until the end of standard input."""
    requests, answers = sys.stdin, sys.stdout
    import django

    django.setup()
    for line in requests:
        argv = json.loads(line)
        with _captured() as (out, err):
            try:
                status = _command(argv)
            except BaseException:
                status = -1
                traceback.print_exc()
            sys.stdout.flush()
            said = out.buffer.getvalue().decode(), err.buffer.getvalue().decode()  # type: ignore[attr-defined]
        answers.write(json.dumps([status, *said]) + "\n")
        answers.flush()


@contextlib.contextmanager
def _captured() -> Iterator[tuple[TextIO, TextIO]]:
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", "strict")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    handler = logging.StreamHandler(err)
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            sys.stdin = io.StringIO()
            yield out, err
    finally:
        logging.getLogger().removeHandler(handler)


def _command(argv: list[str]) -> int:
    from django.core.management import ManagementUtility

    try:
        ManagementUtility(["manage.py", *argv]).execute()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


if __name__ == "__main__":
    main()
