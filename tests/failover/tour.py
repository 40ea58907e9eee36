"""What operators, the site, Celery and an export do with the database, in a process of its own. Prints what fails.

`python -m tests.failover.tour DIRECTORY [pages]`; with `pages` every page and action of the admin, which takes long.
"""

from __future__ import annotations

import sys
from pathlib import Path

import django
from kombu.connection import Connection

from queues.database.parameters import connection_parameters
from queues.etl.job.database import JobConnection
from queues.etl.job.window import TransactionSnapshot, Window

#: Of a run of the ETL that there is not: what Spark puts down over JDBC.
DRAFT = """
    insert into queues_rollupdraft (run, hour, queue, acknowledged, expired, purged, dropped, removed, dead_letters,
        attempts, bytes, dead_reasons, producers, consumers)
    values (0, now(), 'orders', 1, 0, 0, 0, 0, 0, 1, 1, '{}', '{}', '{}')
"""


def use_celery() -> None:
    """Declare a queue, publish to it, consume."""
    with Connection("fivewire://", transport_options={"django_connection": "default"}) as celery:
        queue = celery.SimpleQueue("made-by-celery")
        queue.put("task")
        queue.get(timeout=60).ack()
        queue.close()


def export(directory: Path) -> None:
    """The statements of an export, without Spark."""
    from queues.etl.job.reading import ARCHIVE, AUDIT, LIVE, RANGES

    database = JobConnection({name: str(value) for name, value in connection_parameters().items()})
    output = str(directory)
    database.lock(output)
    database.adopt_restored_rows()
    window = Window(None, TransactionSnapshot.parse(database.snapshot().snapshot))
    database.note(output, "5f0c7d0e-0000-4000-8000-000000000000")
    assert database.knows(output, "5f0c7d0e-0000-4000-8000-000000000000")
    assert database.archive_partitions(window, whole=True).rows
    database.live_bounds()
    assert database.chains()
    assert database.names("queues_queue")
    database.names("queues_apikey")
    for source in (ARCHIVE, RANGES, AUDIT, LIVE):
        database.connection.execute(f"select * from {source}".encode())
    database.connection.execute(DRAFT.encode())
    database.replace_rollups(0)
    database.clear_drafts(0)
    database.close()


def main(directory: Path, pages: bool) -> None:
    django.setup()
    from django.contrib.auth import get_user_model

    import brokersite.celery  # noqa: F401 - tasks are sent by it
    from queues.models import Queue
    from tests.queues import guest
    from tests.queues.crawl import Crawl
    from tests.queues.one_of_each import one_of_each

    user = get_user_model().objects.create_superuser("root", password="x")
    failed = guest.use_every_command(directory)
    Queue.objects.filter(name="orders").update(name="shop")
    one_of_each()
    guest.use_the_api()
    failed += guest.fill_in_forms(user)
    use_celery()
    export(directory)
    guest.keep_it_up()
    crawl = Crawl(user)
    if pages:
        crawl.walk("/admin/")
        crawl.act()
    else:
        crawl.open("/admin/")
    print("\n".join(failed + crawl.faults))


if __name__ == "__main__":
    main(Path(sys.argv[1]), pages="pages" in sys.argv)
