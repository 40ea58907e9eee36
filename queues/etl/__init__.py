"""The way out for data: finished messages and audit rows as Parquet, rollups for charts, chains verified; by Spark.

| module | what it does |
|---|---|
| `runs.py` | the life of a run: start, cancel, recover what was lost |
| `runner.py` | one run: the Spark job as a child process, its progress, its time limit |
| `options.py`, `jar.py` | what a run is given; where the JDBC driver is |
| `verdict.py` | the chains' verdicts, from what the job has read in parallel |
| `errors.py` | what can go wrong |
| `run_supervisor.py`, `workspace.py` | a run's row while it lasts; its temporary files |
| `job/` | what runs under Spark; it imports no Django |
"""
