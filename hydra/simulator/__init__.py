"""A deterministic simulator of a whole Hydra network: virtual time, one seed, everything that can go wrong.

    python -m hydra.simulator --seeds 1000
    python -m hydra.simulator --seed 77 --trace

`scenario` says what happens to a network, `world` lets it happen to real nodes (`hydra.protocol.node`), `checker` looks
after every event whether a promise is broken, `runner` does that for many seeds. `holes` has nodes that break a rule on
purpose.
"""
