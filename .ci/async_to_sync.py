#!/usr/bin/env python3
"""Generate the blocking clients from the asyncio ones: every `NAME_async.py` gives a `NAME.py` beside it.

    .ci/async_to_sync.py            write the generated modules
    .ci/async_to_sync.py --check    fail if one of them is not up to date; writes nothing

`async` and `await` are removed and names are changed: `AsyncClient` to `Client`, `client_async` to `client`,
`async_connection` to `connection`, `__aenter__` to `__enter__` and their like; in strings and comments too. Where the
two modules differ in more, comments in the source say so:

    await self._open()  # async only    the statement that begins or ends on this line is left out
    # sync: self._open()                this line is put in, as it stands

Unused imports are removed, and ruff sorts and formats the rest. A result that still contains `asyncio` is refused.
"""

import argparse
import ast
import io
import itertools
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
ROOMS: Final = ("brokersite", "hydra", "peers", "queues", "wire")
SUFFIX: Final = "_async"

ASYNC_ONLY: Final = "# async only"
SYNC_LINE: Final = re.compile(r"^([ ]*)# sync:(?: |$)", re.MULTILINE)
WORD: Final = re.compile(r"[A-Za-z_]\w*")
#: Keywords in strings and comments.
KEYWORD: Final = re.compile(r"\basync (?=with\b|for\b|def\b)|\bawait (?=[\w(])")

NAMES: Final = {
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "aclosing": "closing",
    "anext": "next",
    "asynccontextmanager": "contextmanager",
    "enter_async_context": "enter_context",
}


class NotConvertible(Exception):
    """The source cannot be converted, or its result is no blocking module."""


def renamed(name: str) -> str:
    """Return what a name of the asyncio module is called in the blocking one."""
    if name in NAMES:
        return NAMES[name]
    if name.endswith(SUFFIX):
        return name.removesuffix(SUFFIX)
    return re.sub(r"^Async(?=[A-Z])|^async_", "", name)


def converted(source: str) -> str:
    """Return the blocking form of a module. Raises NotConvertible, SyntaxError."""
    lines = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for start, end, text in reversed(list(_edits(tokens))):
        first, last = start[0] - 1, end[0] - 1
        replaced = lines[first][: start[1]] + text + lines[last][end[1] :]
        # A token of several lines keeps its number of lines, so that the statements stay where they are.
        lines[first : last + 1] = replaced.splitlines(keepends=True)
    for first, last in _async_only(ast.parse(source), tokens):
        lines[first - 1 : last] = [""] * (last - first + 1)
    return SYNC_LINE.sub(r"\1", "".join(lines))


def _edits(tokens: list[tokenize.TokenInfo]) -> Iterator[tuple[tuple[int, int], tuple[int, int], str]]:
    """Yield what takes the place of the text between two positions, in the order of the source."""
    for token, following in itertools.pairwise(tokens):
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            yield token.start, following.start, ""
        elif token.type == tokenize.NAME:
            if (name := renamed(token.string)) != token.string:
                yield token.start, token.end, name
        elif token.type != tokenize.OP and not SYNC_LINE.match(token.string):
            prose = WORD.sub(lambda word: renamed(word.group()), KEYWORD.sub("", token.string))
            if prose != token.string:
                yield token.start, token.end, prose


def _async_only(tree: ast.Module, tokens: list[tokenize.TokenInfo]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each statement that is marked as having no blocking form."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    for token in tokens:
        if token.type == tokenize.COMMENT and token.string == ASYNC_ONLY:
            yield _extent(_marked(statements, token.start[0]))


def _marked(statements: list[ast.stmt], line: int) -> ast.stmt:
    begins = [each for each in statements if each.lineno == line]
    ends = [each for each in statements if each.end_lineno == line]
    if begins:
        return begins[0]  # ast.walk goes from the outermost inwards
    if ends:
        return ends[-1]
    raise NotConvertible(f"line {line}: no statement begins or ends here that could be left out")


def _extent(statement: ast.stmt) -> tuple[int, int]:
    decorators = getattr(statement, "decorator_list", [])
    assert statement.end_lineno is not None
    return min([statement.lineno, *(each.lineno for each in decorators)]), statement.end_lineno


def generated(source: Path) -> str:
    """Return the text of the module that is generated from this file. Raises NotConvertible, SyntaxError."""
    header = f"# Generated from {source.name} by .ci/async_to_sync.py: change that, and run `make generate`.\n"
    text = header + converted(source.read_text())
    for command in (["check", "--fix-only", "--quiet", "--select=I,F401"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, f"--stdin-filename={target_of(source)}", "-"]
        text = subprocess.run(ruff, input=text, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    left = [each.string for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.string == "asyncio"]
    if left:
        raise NotConvertible("the result still uses asyncio: mark what has no blocking form as `# async only`")
    return text


def target_of(source: Path) -> Path:
    return source.with_name(f"{source.stem.removesuffix(SUFFIX)}.py")


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the blocking clients from the asyncio ones.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a module is not up to date")
    check = parser.parse_args().check
    stale = 0
    for source in sorted(path for room in ROOMS for path in (ROOT / room).rglob(f"*{SUFFIX}.py")):
        target = target_of(source)
        try:
            text = generated(source)
        except (NotConvertible, SyntaxError) as error:
            print(f"{source.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 2
        if target.exists() and target.read_text() == text:
            continue
        stale += 1
        if check:
            print(f"{target.relative_to(ROOT)} is not what {source.name} gives: run `make generate`", file=sys.stderr)
        else:
            target.write_text(text)
            print(f"{target.relative_to(ROOT)} written")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
