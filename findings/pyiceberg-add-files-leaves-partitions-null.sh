#!/usr/bin/env bash
# PyIceberg's add_files: columns that stand in the directories' names alone are NULL in the table.
#
# Versions: pyiceberg 0.12.0 with its SQL catalogue on SQLite, pyarrow 26.0.1.
# A good guess: a hive-partitioned output of Parquet becomes an Iceberg table by registering its files, and day and name
#   come from the directories, as every reader of Parquet takes them.
# Seen: the table takes the files without a word, and a column that is in no file is NULL in each row; a condition on it
#   finds nothing.
# Whom it hurts: who migrates a lake by registering files, as the function is made for: counts are right, and each query
#   with a condition on the partition is empty.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "pyiceberg[sql-sqlite]==0.12.0" pyarrow==26.0.1
"$folder/venv/bin/python" -W ignore - "$folder" <<'PYTHON'
import os
import sys

import pyarrow
from pyarrow import dataset, parquet
from pyiceberg.catalog.sql import SqlCatalog

folder = sys.argv[1]
for day in ("2026-11-27", "2026-11-28"):
    os.makedirs(f"{folder}/lake/dt={day}")
    parquet.write_table(pyarrow.table({"id": [1, 2]}), f"{folder}/lake/dt={day}/one.parquet")

os.makedirs(f"{folder}/warehouse")
catalog = SqlCatalog("local", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
catalog.create_namespace("lake")
schema = pyarrow.schema([("id", pyarrow.int64()), ("dt", pyarrow.string())])
table = catalog.create_table("lake.rows", schema=schema)
table.add_files(sorted(dataset.dataset(f"{folder}/lake").files))

days = table.scan().to_arrow().column("dt").to_pylist()
found = table.scan(row_filter="dt = '2026-11-27'").to_arrow().num_rows
print(f"{len(days)} rows, dt is {set(days)}, {found} of 2 rows of 2026-11-27 are found")
assert (days, found) == ([None] * 4, 0), "add_files takes values from directories now"
PYTHON
