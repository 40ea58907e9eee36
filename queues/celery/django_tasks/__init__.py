"""A backend of Django's tasks: tasks leave with the caller's transaction, and `manage.py runtasks` runs them."""
