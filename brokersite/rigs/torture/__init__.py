"""Torture: clients under load while the listener and the database are killed, and a checker of what they saw.

`manage.py torture` is the command. `history` is what was seen, `checker` judges it without any I/O, `workload` has
the clients, `faults` the faults of the broker, `runner` puts them together.
"""
