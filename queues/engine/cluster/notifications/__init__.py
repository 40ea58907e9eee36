"""Notifications between nodes and operators: their texts (`formats`), sending and reading (`channel`), and a node's
reactions (`handlers`)."""
