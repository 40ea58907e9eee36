"""``manage.py etl soak``: is the export exact under load, whatever is open and whenever it is killed, and does it harm?

| module | what it does |
|---|---|
| `runner.py` | the whole of it: load on, runs and kills, phases that are compared, load off, the verdict |
| `processes.py` | the broker and the clients, as processes |
| `holding.py` | transactions that stay open across windows |
| `exports.py` | runs as processes, of which some are killed |
| `watching.py` | what the runs' sessions hold in the database |
| `checking.py`, `reading.py` | what the archive has by SQL, what the output has by Spark, and how they differ |
"""
