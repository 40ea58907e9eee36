"""Celery on Fivewire: kombu's transport, consumers in a thread, and the backend for Django's tasks."""
