"""PostgreSQL's fields and indexes, for projects that do not have `django.contrib.postgres` among their apps.

Django 6.1 refuses a model that uses them without that app (postgres.E005). The app registers ranges, hstore, lookups
and templates of widgets, and arrays and indexes need nothing of it. Migrations name Django's own classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.postgres import fields, indexes
from django.db.models import Index

if TYPE_CHECKING:
    _ArrayField = fields.ArrayField[list[Any], list[Any]]
else:
    _ArrayField = fields.ArrayField


class ArrayField(_ArrayField):
    """An array."""

    def _check_postgres_installed(self, *args: Any) -> list[Any]:
        return []

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.contrib.postgres.fields.ArrayField", args, kwargs


class _NeedsNoApp:
    """An index of `django.contrib.postgres`."""

    def _check_postgres_installed(self, *args: Any) -> list[Any]:
        return []

    def deconstruct(self) -> Any:
        _, args, kwargs = super().deconstruct()  # type: ignore[misc]
        return f"django.contrib.postgres.indexes.{type(self).__name__}", args, kwargs

    def __eq__(self, other: object) -> bool:
        """Whether migrations need not change it; theirs are Django's own."""
        return isinstance(other, Index) and self.deconstruct() == other.deconstruct()

    __hash__ = None  # type: ignore[assignment]  # as any index


class BrinIndex(_NeedsNoApp, indexes.BrinIndex):
    """An index over ranges of pages."""


class HashIndex(_NeedsNoApp, indexes.HashIndex):
    """An index for equality alone."""
