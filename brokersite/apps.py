"""The Django application ``brokersite``: home of the commands that concern the whole project."""

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate


class BrokersiteConfig(AppConfig):
    """Settings, health and metrics, and the command that starts everything."""

    name = "brokersite"

    def ready(self) -> None:
        from brokersite import checks  # noqa: F401
        from brokersite.groups import keep_groups
        from queues.checks import refuse_encoding

        connection_created.connect(refuse_encoding)
        post_migrate.connect(keep_groups)
