"""Django's backend for PostgreSQL on several hosts: `"ENGINE": "queues.postgresql"`."""
