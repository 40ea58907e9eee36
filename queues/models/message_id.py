"""The id of a message in the view of all that are not finished, and how conditions on it reach segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models.expressions import Col, Combinable
from django.db.models.lookups import In, IntegerFieldExact, IntegerGreaterThan, IntegerGreaterThanOrEqual

#: Messages of a segment, at most; they have ids one after the other.
MAX_SEGMENT = 4096
LEAST_ID, GREATEST_ID = -(1 << 63), (1 << 63) - 1

if TYPE_CHECKING:
    _BigInteger = models.BigIntegerField[int | Combinable, int]
else:
    _BigInteger = models.BigIntegerField


class MessageId(_BigInteger):
    """The id of a message, whose conditions say as well which segments may have such messages: only these are read."""

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.BigIntegerField", args, kwargs


class _ReachesSegments:
    """A lookup of an id, with a condition on the view's column `segment` beside it."""

    lhs: Any
    rhs: Any
    #: The condition on it, of one parameter.
    segments = "= any((select queues_segments_of(%s::bigint[]))::bigint[])"

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        sql, params = super().as_sql(compiler, connection)  # type: ignore[misc]
        if not (self.rhs_is_direct_value() and isinstance(self.lhs, Col)):  # type: ignore[attr-defined]
            return sql, params
        column, _ = compiler.compile(self.lhs)
        segment = column.removesuffix(f'"{self.lhs.target.column}"') + '"segment"'
        return f"({sql} and {segment} {self.segments})", (*params, self.near(self.rhs))

    def near(self, value: Any) -> Any:
        """The parameter of the condition."""
        return [value]


@MessageId.register_lookup
class _In(_ReachesSegments, In):
    def near(self, value: Any) -> Any:
        return [id for id in value if id is not None and LEAST_ID <= id <= GREATEST_ID]


class _Beyond(_ReachesSegments):
    segments = "> %s"

    def near(self, value: Any) -> Any:
        return max(value - MAX_SEGMENT, LEAST_ID)


for reach, lookup in (
    (_ReachesSegments, IntegerFieldExact), (_Beyond, IntegerGreaterThan), (_Beyond, IntegerGreaterThanOrEqual)
):  # fmt: skip
    MessageId.register_lookup(type(lookup.__name__, (reach, lookup), {}))
