"""The contents of an output as a reader of Parquet: ``python -m tests.rigs.etl_soak.reading CONFIG QUESTION``.

CONFIG is the path of a job's configuration. QUESTION is JSON: null asks for the rows, the different ids and a checksum
of each day and queue; a list of [day, queue] for the ids of each. Prints JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from queues.etl.job.config import Config
from queues.etl.job.layout import MESSAGES
from queues.etl.job.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The compared columns of a row; `checking.py` has the same in PostgreSQL's words.
ROW = "concat_ws('|', id, outcome, attempts, unix_micros(published_at), unix_micros(finished_at), size)"
CHECKSUM = f"cast(sum(cast(conv(substr(md5({ROW}), 1, 15), 16, 10) as decimal(38, 0))) as string)"
GROUPS = f"select day, queue, count(*), count(distinct id), {CHECKSUM} from messages group by day, queue"


def answer(config: Config, question: list[list[str]] | None) -> list[list[object]]:
    """Read the messages, found by nothing but the path: the day and the queue are those of the directory."""
    with session(config) as spark:
        rows: DataFrame = spark.read.parquet(f"{config.output}/{MESSAGES}")
        rows.selectExpr("*", "cast(dt as string) as day").createOrReplaceTempView("messages")
        if question is None:
            return [list(row) for row in spark.sql(GROUPS).collect()]
        return [[day, queue, _ids(spark, day, queue)] for day, queue in question]


def _ids(spark: SparkSession, day: str, queue: str) -> list[int]:
    text = "select id from messages where day = :day and queue = :queue"
    return [row["id"] for row in spark.sql(text, args={"day": day, "queue": queue}).collect()]


def main() -> None:
    config, question = Config.take(Path(sys.argv[1])), json.loads(sys.argv[2])
    print(json.dumps(answer(config, question)))


if __name__ == "__main__":
    main()
