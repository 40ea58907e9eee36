#!/usr/bin/env bash
# Parquet below hive directories: three readers decode %XX first and guess the type then, so an escaped name is a number.
#
# Versions: pyarrow 26.0.1, pandas 3.1.1, polars 2.1.0, duckdb 2.0.1.
# A good guess: a writer that escapes the first character of "007" (queue=%3007) has said that this is text, since no
#   number has a percent sign in it.
# Seen: pyarrow, pandas and Polars undo the escape before they guess, and read the number 7; DuckDB guesses from what
#   stands on the disk and reads the text 007. Each reads text when it is told the type.
# Whom it hurts: who has codes with leading zeros (articles, accounts, postal codes) as the names of partitions: two of
#   them, 7 and 007, are one, depending on the reader. Only a type that is given, or a column in the files, helps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    pyarrow==26.0.1 pandas==3.1.1 polars==2.1.0 duckdb==2.0.1
"$folder/venv/bin/python" - "$folder/table" <<'PYTHON'
import os
import sys

import duckdb
import pandas
import polars
import pyarrow
from pyarrow import dataset, parquet

table = sys.argv[1]
os.makedirs(f"{table}/code=%3007")
parquet.write_table(pyarrow.table({"id": [1]}), f"{table}/code=%3007/one.parquet")

text = pyarrow.schema([("code", pyarrow.string())])
guessed = {
    "pyarrow": dataset.dataset(table, partitioning="hive").to_table().column("code")[0].as_py(),
    "pandas": pandas.read_parquet(table)["code"].tolist()[0],
    "polars": polars.scan_parquet(table, hive_partitioning=True).collect()["code"][0],
    "duckdb": duckdb.sql(f"select code from read_parquet('{table}/*/*.parquet', hive_partitioning = true)").fetchall()[0][0],
}
told = {
    "pyarrow": dataset.dataset(table, partitioning=dataset.partitioning(text, flavor="hive")).to_table().column("code")[0].as_py(),
    "polars": polars.scan_parquet(table, hive_schema={"code": polars.String}).collect()["code"][0],
    "duckdb": duckdb.sql(
        f"select code from read_parquet('{table}/*/*.parquet', hive_partitioning = true, hive_types = {{'code': varchar}})"
    ).fetchall()[0][0],
}
for reader, value in guessed.items():
    print(f"{reader} guesses {value!r}, and told that it is text {told.get(reader, '-')!r}")
assert guessed == {"pyarrow": 7, "pandas": 7, "polars": 7, "duckdb": guessed["duckdb"]}, "a reader guesses otherwise now"
assert isinstance(guessed["duckdb"], str), "DuckDB guesses a number now"
assert set(told.values()) == {"007"}, "a reader that is told the type does not obey now"
PYTHON
