"""The nodes of one database: membership, notifications between them, and periodic work."""
