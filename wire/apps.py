"""The Django application ``wire``."""

from django.apps import AppConfig


class WireConfig(AppConfig):
    """The raw TCP protocols and their shared listener."""

    name = "wire"
