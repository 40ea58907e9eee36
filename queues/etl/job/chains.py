"""Verification in parallel: how far the rows of audit chains follow from each other.

The verdict on a chain needs its anchors and keys, and is the parent's (`queues.etl.verdict`). What takes time is here:
for each long chain, up to which seq every row follows from the one before it. Each range is read with the row before
it, so that the boundaries between ranges are checked like every other place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from queues.database.sql_files import load_statement
from queues.etl.job.blocks import check
from queues.etl.job.database import ROWS_PER_QUERY, Chain

if TYPE_CHECKING:  # the parent knows `ChainVerification`, and may lack pyspark
    from queues.etl.job.reading import Reader

#: Rows in a block. A block has one value per column.
BLOCK = 10_000
#: The parent reads shorter chains faster than a Spark job does.
WORTHWHILE = 20_000

BLOCKS = """(select low, high, seqs, hashes, events
    from generate_series({start}, {end} - 1, {size}) low, least(low + {size}, {end}) high,
    lateral ({rows}) as b (seqs, times, hashes, events)) as blocks"""
ROWS = load_statement(Path(__file__).parents[2] / "sql" / "audit_block.sql").decode()


@dataclass(frozen=True, slots=True)
class ChainVerification:
    """Result of a chain: each row between `first` and `end` exists once and follows from the row before it."""

    chain: str
    first: int
    end: int


def prove(reader: Reader, chains: Sequence[Chain], worthwhile: int = WORTHWHILE) -> list[ChainVerification]:
    """Verify the long ones among these chains."""
    long = [chain for chain in chains if chain.first is not None and chain.end - chain.first >= worthwhile]
    return [_prove(reader, chain) for chain in long]


def _prove(reader: Reader, chain: Chain) -> ChainVerification:
    assert chain.first is not None
    rows = ROWS % {"chain": chain.id, "low": "low - 1", "high": "high"}
    source = BLOCKS.format(rows=rows, start=chain.first + 1, end=chain.end, size=BLOCK)
    step = max(BLOCK, ROWS_PER_QUERY // BLOCK * BLOCK)
    predicates = [f"low >= {low} and low < {low + step}" for low in range(chain.first + 1, chain.end, step)]
    blocks = reader.table(source, predicates).select("low", "high", "seqs", "hashes", "events")
    found = blocks.rdd.mapPartitions(check).collect()
    wrong = [seq for _, seq in found if seq is not None]
    return ChainVerification(chain.name, chain.first, min(wrong, default=chain.end))
