"""Mailboxes: queues with one exclusive consumer, whose messages are acknowledged by key."""
