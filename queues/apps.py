"""The Django application ``queues``."""

from django.apps import AppConfig


class QueuesConfig(AppConfig):
    """The store and everything true whatever the protocol."""

    name = "queues"
