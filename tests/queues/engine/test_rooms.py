"""Ownership of fields in the engine: an object's fields are written by its own class only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import queues.engine

ENGINE = Path(queues.engine.__file__).parent

#: Writes that are allowed elsewhere, by the last two names of the target; each with its reason.
ALLOWED = {
    # A tally without rules: each part adds up the messages that it has handled.
    ("counts", "+="),
    ("_counts", "+="),
    # A setting of psycopg's, which has no method for it.
    ("connection", "prepared_max"),
}


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that a statement writes to."""
    match node:
        case ast.Assign(targets=found) | ast.Delete(targets=found):
            yield from found
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
            yield target
        case ast.AsyncFor(target=target) | ast.comprehension(target=target) | ast.NamedExpr(target=target):
            yield target
        case ast.withitem(optional_vars=target) if target is not None:
            yield target
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]):
            yield ast.copy_location(ast.Attribute(owner, "…", ast.Store()), node)


def fields(target: ast.expr) -> Iterator[ast.Attribute]:
    """The attributes in a target that are written, as `a.b`, or whose items are, as `a.b[c]`."""
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from fields(part)
        case ast.Starred(value=part) | ast.Subscript(value=part):
            yield from fields(part)
        case ast.Attribute():
            yield target


def foreign_writes(source: str) -> list[str]:
    """Each write of a field of another object, with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for target in targets(node):
            for field in fields(target):
                match field.value:
                    case ast.Name(id="self" | "cls"):
                        continue
                    case ast.Name(id=owner) | ast.Attribute(attr=owner):
                        allowed = {(owner, "+=" if isinstance(node, ast.AugAssign) else field.attr)}
                    case _:
                        allowed = set()
                if not allowed & ALLOWED:
                    found.append(f"{field.lineno}: {ast.unparse(field)}")
    return found


def test_fields_of_the_engines_objects_are_written_by_their_own_classes_only() -> None:
    found = [
        f"{path.relative_to(ENGINE)}:{write}"
        for path in sorted(ENGINE.rglob("*.py"))
        for write in foreign_writes(path.read_text())
    ]
    assert found == []


def test_every_form_of_a_write_is_found() -> None:
    source = """
self.queue.paused = True
queue.length += 1
del queue.policy
queue.unacked[1] = 2
first, (queue.tag, *queue.rest) = rest
for queue.at in rest: pass
with lock as queue.lock: pass
setattr(queue, "name", 1)
queue.counts = 1
first().second = 3
"""
    lines = sorted(int(write.partition(":")[0]) for write in foreign_writes(source))
    assert lines == [2, 3, 4, 5, 6, 6, 7, 8, 9, 10, 11]


def test_an_objects_own_writes_and_tallies_are_left_alone() -> None:
    assert foreign_writes("self.paused = cls.many = name = 1; self.counts.claimed += 1; self.held[1] = 2") == []
