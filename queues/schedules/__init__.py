"""Rows with a cron expression: when they run next, and the periodic jobs."""
