"""The Django application ``hydra``."""

from django.apps import AppConfig


class HydraConfig(AppConfig):
    """Hydra, a group of nodes that elects its leader."""

    name = "hydra"
