"""Tables that a test changes while a broker uses them, and who waits for whom.

The server has other databases, which other tests use at the same time: what is asked is of this one.
"""

from __future__ import annotations

#: The locks on tables, and advisory ones. More conditions may follow.
LOCKS = "select 1 from pg_locks where database = (select oid from pg_database where datname = current_database())"
#: The locks that sessions wait for. Not from pg_stat_activity, of which a transaction sees what it saw first.
LOCK_WAITS = f"select 1 from pg_locks w where not granted and exists ({LOCKS} and pid = w.pid)"


def lock_waits(application: str) -> str:
    """As `LOCK_WAITS`, of the sessions with such a name."""
    return f"{LOCK_WAITS} and pid in (select pid from pg_stat_activity where application_name like '{application}')"


def altering(table: str, statement: str) -> str:
    """A statement in a transaction of its own that locks the table first, and then its partitions, as every statement
    of a broker does. DROP TRIGGER alone goes the other way round, and one of the two would be ended as a deadlock."""
    return f"begin; lock table {table} in access exclusive mode; {statement}; commit"
