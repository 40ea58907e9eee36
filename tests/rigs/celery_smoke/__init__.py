"""Celery's own features over the store, with real workers, one of which is killed."""
