"""The queues of a soak."""

from __future__ import annotations

from typing import Final

#: Jobs of Overhop, of which some fail; what Django publishes; what SSPQ's clients share, which is audited.
JOBS: Final = "soak-jobs"
ORDERS: Final = "soak-orders"
LETTERS: Final = "soak-letters"
#: Messages that are finished only in transactions that stay open.
HELD: Final = "soak-held"
