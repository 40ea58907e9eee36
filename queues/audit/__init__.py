"""The audit chains: append-only records of what happened, each row hashed with the one before, heads signed.

| module | what it does |
|---|---|
| `events.py` | the bytes of an event and their hashes; pure |
| `chains.py` | appending from Django code, the journal of long transactions |
| `signing.py`, `anchor.py` | the key, what an anchor is |
| `anchoring.py`, `anchor_file.py` | writing anchors, their copy outside the database |
| `reading.py`, `diagnosis.py`, `verify.py` | reading a chain fast, diagnosing a wrong row, verifying it all |
| `retention.py`, `upkeep.py` | dropping old days, and the periodic upkeep |

The engine appends with `queues.engine.audit`.
"""
