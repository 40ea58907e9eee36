"""Values and how they are written: texts, times, cron expressions, JSON, ids. No database is used here."""
