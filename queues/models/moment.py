"""A moment: a time that is aware, whatever the project's settings."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import models
from django.utils import timezone

if TYPE_CHECKING:
    DateTimeField = models.DateTimeField[Any, Any]
else:
    DateTimeField = models.DateTimeField


def aware(value: datetime) -> datetime:
    """A moment; one without a zone is in the zone of the project's `TIME_ZONE`, as Django has it with `USE_TZ` off."""
    return timezone.make_aware(value, timezone.get_default_timezone()) if timezone.is_naive(value) else value


class MomentField(DateTimeField):
    """A DateTimeField whose values are aware also where the project has `USE_TZ = False`.

    Then they are in the zone that Django's own pages show. Two of them are compared and subtracted as Unix times where
    an hour matters: Python takes times of one zone by the face of their clocks.
    """

    def from_db_value(self, value: datetime | None, expression: object, connection: object) -> datetime | None:
        return None if value is None else aware(value)

    def to_python(self, value: Any) -> datetime | None:
        found = super().to_python(value)
        return None if found is None else aware(found)

    def deconstruct(self) -> tuple[str, str, list[Any], dict[str, Any]]:
        """For migrations, an ordinary DateTimeField."""
        name, _, arguments, options = super().deconstruct()
        return name, "django.db.models.DateTimeField", list(arguments), options
