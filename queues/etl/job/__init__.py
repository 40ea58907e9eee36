"""The Spark job. No module imports Django: a file has all that the job needs (`config.py`).

| module | what it does |
|---|---|
| `__main__.py`, `stages.py` | the job, stage by stage |
| `window.py` | which rows a run is to read: pure |
| `database.py` | the driver's own connection: locks, snapshots, how to cut reading into short queries |
| `continuity.py` | where a run's window begins |
| `reading.py`, `schema.py`, `bodies.py` | from PostgreSQL over JDBC to the columns of the output |
| `layout.py` | names of directories and files: pure |
| `export.py`, `writing.py` | writing the files of a run, counting them, putting them in place |
| `files.py`, `ledger.py` | the output's file system; the record that makes a run complete, or as if it had not been |
| `compaction.py` | merging small files |
| `rollups.py` | figures by hour and queue |
| `chains.py`, `blocks.py` | audit chains, in parallel |
| `pacing.py` | working only a part of the time while others want the processors |
| `session.py`, `progress.py` | starting Spark, telling how far it has come |
"""
