"""The benchmark of `manage.py bench`: loads a running broker as its clients do, and others beside it, in turns.

A *system* (`systems.py`) is a broker with one protocol; its *driver* (`drivers/`) speaks the protocol over bare
sockets, in processes of its own (`processes.py`) that cost little: frames of a run have one length, so sequence numbers
are written and read as columns of bytes (`columns.py`), and nothing is done message by message where it can be helped.
`measures.py` has what is measured, over any driver. `deployment.py` makes queues and keys of the run's own and removes
them, `servers.py` starts a RabbitMQ or NATS to compare with, `report.py` sums up. Load processes import no Django.
"""
