"""Tables that a test changes while a broker uses them."""

from __future__ import annotations


def altering(table: str, statement: str) -> str:
    """A statement in a transaction of its own that locks the table first, and then its partitions, as every statement
    of a broker does. DROP TRIGGER alone goes the other way round, and one of the two would be ended as a deadlock."""
    return f"begin; lock table {table} in access exclusive mode; {statement}; commit"
