"""Consuming from programs that are not asynchronous: the engine runs in a thread, messages wait in an inbox."""
