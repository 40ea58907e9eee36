"""PostgreSQL's fields and indexes, for projects that do not have `django.contrib.postgres` among their apps.

Django 6.1 refuses a model that uses them without that app (postgres.E005). The app registers ranges, hstore, lookups
and templates of widgets, and arrays and indexes need nothing of it. Migrations name Django's own classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.postgres import fields, indexes

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


class BrinIndex(_NeedsNoApp, indexes.BrinIndex):
    """An index over ranges of pages."""


class HashIndex(_NeedsNoApp, indexes.HashIndex):
    """An index for equality alone."""
