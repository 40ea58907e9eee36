"""Python's garbage collector in a process that serves messages."""

import gc

#: Objects made and not freed until the young are looked at, and how often the older generations are.
THRESHOLDS = 250_000, 50, 50


def spare_garbage_collector() -> None:
    """Call once all modules are loaded. Nearly all objects are freed by their counts: those in flight under load, ten a
    message, should not be scanned again and again, and those of the modules never."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
