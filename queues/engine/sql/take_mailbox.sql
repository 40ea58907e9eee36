-- Give a mailbox to a new connection of this node. Returns the queue, the connection's number, or why it was refused.
select mailbox, taken, refused
from queues_take_mailbox(%(name)s, %(key)s, %(node)s, %(by_owner_only)s, %(former)s)
