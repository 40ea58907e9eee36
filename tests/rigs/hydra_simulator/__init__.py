"""A deterministic simulator of a whole Hydra network: virtual time, one seed, all kinds of faults.

    python -m tests.rigs.hydra_simulator --seeds 1000
    python -m tests.rigs.hydra_simulator --seed 77 --trace

`scenario` draws a network and its faults, `world` runs it on a `cluster` of real nodes, and after every event `checker`
looks for a broken promise. `runner` runs many seeds; `faulty_nodes` break a rule on purpose.
"""
