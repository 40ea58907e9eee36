"""Programs as users write them, by each product's own client, side by side: `manage.py bench clients`.

`blipmq.py`, `rabbitmq.py`, `nats.py` and `overhop.py` have the programs of each product, as its pages show them;
`program.py` runs one in a process of its own. `bench.py` makes the queues, starts the programs and checks each message.
"""
