"""Notifications between nodes and operators: the texts (`formats`), how they are sent and read (`channel`), and what a
node does about each (`handlers`)."""
