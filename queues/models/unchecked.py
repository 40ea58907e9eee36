"""The id of a row of another table, unchecked."""

from typing import Any, TypeVar

from django.db import models

_Set = TypeVar("_Set")
_Get = TypeVar("_Get")


class UncheckedForeignKey(models.ForeignKey[_Set, _Get]):
    """The id of a row of another table, which may be gone: the models know of no constraint, nothing follows a
    deletion, and there is no index of this column alone.

    Written by SQL, where a check would cost a look into the other table for each row. Where a row must go with the
    other, a migration has the constraint, since Django could not let the database delete by itself.
    """

    def __init__(
        self, to: type[models.Model] | str, *, related_name: str = "+", null: bool = False, **options: Any
    ) -> None:
        options |= {"on_delete": models.DO_NOTHING, "db_constraint": False, "db_index": False}
        super().__init__(to, related_name=related_name, null=null, **options)

    def deconstruct(self) -> tuple[str, str, list[Any], dict[str, Any]]:
        """For migrations, an ordinary foreign key."""
        name, _, arguments, options = super().deconstruct()
        return name, "django.db.models.ForeignKey", list(arguments), options
