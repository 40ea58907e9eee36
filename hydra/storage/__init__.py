"""A Hydra node's state in PostgreSQL: its row, lease, votes, status and records of lines.

`node_row` is the store of a running node. It holds the node's lease (`node_lease`) on one of its two connections, and
writes votes (`vote_log`) and status (`status_writer`) on the other. `line_records` are for the recorder and the sender,
which call them in a `database_thread`.
"""
