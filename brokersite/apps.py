"""The Django application ``brokersite``: home of the commands that concern the whole project."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class BrokersiteConfig(AppConfig):
    """Settings, health and metrics, and the command that starts everything."""

    name = "brokersite"

    def ready(self) -> None:
        from brokersite import checks  # noqa: F401
        from brokersite.groups import keep_groups

        post_migrate.connect(keep_groups)
