"""The Django project: settings, the embedded PostgreSQL, health, and the command that starts everything."""
