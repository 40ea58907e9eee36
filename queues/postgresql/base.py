"""Django's backend: connections lead to the primary of several hosts, and leave one that was replaced."""

from __future__ import annotations

from typing import Any, ClassVar

import psycopg
from django.db.backends.postgresql import base
from django.db.utils import OperationalError

from queues.database.hosts import Session, choose


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection. Raises OperationalError in a transaction whose primary was replaced: it is not committed."""

    #: The hosts that the pools of this process lead to, by alias.
    _pools: ClassVar[dict[str, tuple[Any, ...]]] = {}
    #: The primary of the connection, and of the next one.
    _primary = _next_primary = Session()

    def get_connection_params(self) -> dict[str, Any]:
        parameters, self._next_primary = choose(super().get_connection_params())
        return parameters

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        at = tuple(conn_params.get(name) for name in ("host", "port", "hostaddr"))
        if self.settings_dict["OPTIONS"].get("pool") and self._pools.setdefault(self.alias, at) != at:
            self.close_pool()
            self._pools[self.alias] = at
        self._primary = self._next_primary
        return super().get_new_connection(conn_params)

    def close_if_unusable_or_obsolete(self) -> None:
        if self.connection is not None and self._primary.outdated and not self.in_atomic_block:
            self.close()
        super().close_if_unusable_or_obsolete()

    def _cursor(self, name: str | None = None) -> Any:
        self._leave_replaced()
        return super()._cursor(name)  # type: ignore[misc]

    def _commit(self) -> None:
        self._leave_replaced()
        super()._commit()  # type: ignore[misc]

    def _leave_replaced(self) -> None:
        """Leave a primary that was replaced. Raises OperationalError in a transaction."""
        if self.connection is None or not self._primary.outdated:
            return
        if self.in_atomic_block or not self.get_autocommit():
            self.connection.close()  # the transaction is undone
            reason = "the primary was replaced by another host"
            raise OperationalError(reason) from psycopg.OperationalError(reason)
        self.close()
