"""Celery's benchmark and smoke test on Fivewire."""
