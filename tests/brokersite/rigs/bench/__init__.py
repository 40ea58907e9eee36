"""Tests of `manage.py bench`."""
