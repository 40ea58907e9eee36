"""The Django application ``hydra``."""

from django.apps import AppConfig


class HydraConfig(AppConfig):
    """Hydra, a group of nodes that elects its leader."""

    name = "hydra"

    def ready(self) -> None:
        """Show links among the connections of clients."""
        from hydra.connections import LinkSource
        from queues.operations.connections import sources

        sources.append(LinkSource())
