"""An operator's night, from the log-in to the audit chain, with a broker, its clients and a real browser.

Its pages are the pictures of README and docs: `make screenshots` draws them anew.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.db import connection
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from brokersite.groups import APPS, keep_groups
from queues.database.parameters import connection_parameters
from queues.models import BulkOperation, BulkState, Queue, QueueSample, State
from queues.operations.monitor import reader
from tests.browser.hand import answer_yes, click, log_in, type_in, until, until_said, until_seen
from tests.queues.store import assert_counts_are_exact, make_queue, store
from tests.waiting import wait_until
from tests.wire.broker import Broker, Database
from wire.blipmq.client import Client as BlipMQ
from wire.overhop.client import Client as Overhop

#: Each thing that is done in it has a test of its own beside it, but for so many messages.
pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

PASSWORD = "a password of the night"
#: Queues, and the messages of each a minute.
RATES = {"emails": 2100, "invoices": 640, "thumbnails": 5200}
MINUTES = 60
DEAD, MOVED, BATCH = 5_000, 10_000, 2_500
#: Bytes of a picture.
MAX_BYTES = 150_000
#: Marks the page, which is gone when it is loaded again; and says whether it is there.
MARK, MARKED = "window.marked = true", "return window.marked === true"
#: Has operations wait, once they have done so many messages, for as long as another session holds this lock.
GATE, GATE_AT = 814, 4000
MAKE_GATE = f"""
create function wait_at_gate() returns trigger language plpgsql as
    $$ begin perform pg_advisory_xact_lock_shared({GATE}); return new; end $$;
create trigger gate before update on queues_bulkoperation for each row
    when (new.action = 'move' and new.done >= {GATE_AT} and new.state = 'running') execute function wait_at_gate()
"""
#: The status of the answer to a request that no button makes.
POST = """
const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
fetch(arguments[0], {method: "POST", headers: {"X-CSRFToken": token}}).then((answer) => arguments[1](answer.status));
"""
DROP_GATE = "drop trigger gate on queues_bulkoperation; drop function wait_at_gate()"


@dataclass
class Night:
    """The operator's desk."""

    browser: webdriver.Chrome
    site: str
    broker: Broker
    pictures: Path | None
    #: The key that was made, once it was.
    key: str = ""
    #: The consumer's messages.
    consumed: list[bytes] = field(default_factory=list)

    def open(self, path: str = "") -> None:
        self.browser.get(f"{self.site}/admin/{path}")

    def see(self, selector: str, words: str) -> str:
        return until_seen(self.browser, selector, words)

    def click(self, selector: str) -> None:
        click(self.browser, By.CSS_SELECTOR, selector)

    def follow(self, text: str) -> None:
        click(self.browser, By.XPATH, f"//a[normalize-space(.)='{text}']")

    def type(self, name: str, text: str) -> None:
        type_in(self.browser, name, text)

    def picture(self, name: str) -> None:
        """Draw a picture of the documentation, if it is asked for."""
        if self.pictures is not None:
            assert self.browser.save_screenshot(str(self.pictures / name))
            assert (self.pictures / name).stat().st_size < MAX_BYTES, name


@pytest.fixture
def an_evening(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Queues with messages and an hour of history; operators; a broker whose sessions may not be held back at all."""
    monkeypatch.setattr("queues.operations.monitor.database_disk", lambda using: None)  # this machine's may be full
    for app in APPS:
        keep_groups(apps.get_app_config(app), "default")
    for name, group in (("ann", "administrator"), ("vic", "viewer")):
        user = User.objects.create_user(name, password=PASSWORD, is_staff=True)
        user.groups.add(Group.objects.get(name=group))
    end = datetime.now(UTC).replace(second=0, microsecond=0)
    totals = [[0, 0] for _ in range(MINUTES)]
    for name, rate in RATES.items():
        queue = make_queue(name)
        for minute, total in enumerate(totals):
            published = int(rate * (1 + 0.4 * math.sin(minute / 7 + rate)))
            ready = int(rate * (0.05 + 0.04 * math.sin(minute / 5 + rate)))
            total[0], total[1] = total[0] + published, total[1] + ready
            died = DEAD if (name, minute) == ("emails", 9) else 0
            sample(queue.pk, end - timedelta(minutes=minute), published, ready, died)
    for minute, (published, ready) in enumerate(totals):
        sample(0, end - timedelta(minutes=minute), published, ready)
    emails, invoices = (Queue.objects.get(name=name) for name in ("emails", "invoices"))
    for _ in range(0, DEAD, BATCH):
        store(emails, State.DEAD, BATCH, payload=b'{"to": "bob"}', error="no route to mail.example", attempts=5)
    for _ in range(0, MOVED, BATCH):
        store(invoices, State.READY, BATCH, payload=b'{"invoice": 1}')
    make_queue("invoices-old")
    with connection.cursor() as cursor:  # what comes from now on is compared with it, as after the first minute ever
        cursor.execute("insert into queues_samplemark values (0, %s, 0, 0, 0, 0, 0, 0)", [end])
    reader.forget()
    yield
    reader.forget()


def sample(queue: int, at: datetime, published: int, ready: int, died: int = 0) -> None:
    QueueSample.objects.create(
        queue=queue, at=at, seconds=60, ready=ready, leased=0, delayed=0, dead=0, peak=ready, published=published,
        settled=published, completed=published, died=died, database_bytes=1 << 28 if queue == 0 else None,
    )  # fmt: skip


@pytest.fixture
def night(
    an_evening: None, browser: webdriver.Chrome, live_server: LiveServer, database_url: str,
    request: pytest.FixtureRequest,
) -> Iterator[Night]:  # fmt: skip
    browser.set_window_size(1280, 1180)
    with Broker(database_url) as broker:
        yield Night(browser, live_server.url, broker, request.config.getoption("screenshots"))


def test_an_operators_night(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    sees_what_is_wrong(night)
    makes_a_queue_a_key_and_a_route(night)
    watches_messages_come(night)
    message = pauses_and_finds_one_by_its_body(night)
    follows_its_life_and_publishes_it_again(night, message)
    moves_many_and_cancels(night)
    puts_dead_letters_back(night)
    purges(night)
    ends_what_holds_back_vacuum(night, monkeypatch)
    finds_every_act(night, message)
    is_refused_as_a_viewer(night)


def sees_what_is_wrong(night: Night) -> None:
    log_in(night.browser, night.site, "ann", PASSWORD)
    night.see("#broker-problems", f"emails has {DEAD:,} dead letters")
    night.see("#broker-busiest", "thumbnails")
    night.picture("admin-front.png")


def makes_a_queue_a_key_and_a_route(night: Night) -> None:
    night.click("#models a.addlink[href$='/queue/add/']")
    night.type("name", "orders")
    night.type("max_attempts", "1")
    night.click("[name=_save]")
    until_said(night.browser, "orders")
    night.open()
    night.click("#models a.addlink[href$='/apikey/add/']")
    night.type("name", "shop")
    night.click("[name=protocols][value=blipmq]")
    night.type("publish", "*")
    night.type("consume", "*")
    night.click("[name=_save]")
    night.key = until(night.browser, lambda page: page.find_element(By.ID, "new-key").text)
    night.open()
    night.click("#models a.addlink[href$='/route/add/']")
    night.type("source", "topic:orders")
    night.type("target", "queue:orders")
    night.click("[name=_save]")
    until_said(night.browser, "topic:orders")


def watches_messages_come(night: Night) -> None:
    night.open()
    night.see("#broker-busiest", "orders")
    night.browser.execute_script(MARK)
    publish(night, *(b'{"order": %d}' % n for n in range(321)))
    night.see("#broker-busiest tr", "orders")
    until(night.browser, lambda page: "321" in row_of(page, "orders"))
    assert night.browser.execute_script(MARKED), "the page was loaded again"
    with consumer(night):
        wait_until(lambda: len(night.consumed) == 321, "all orders are consumed")
        until(night.browser, lambda page: "321" not in row_of(page, "orders"))
    assert night.browser.execute_script(MARKED)
    night.open("queues/route/")
    until(night.browser, lambda page: "321" in row_of(page, "topic:orders"))
    night.follow("Picture")
    until(night.browser, lambda page: row_of(page, "topic:orders")[1:4] == ["route", "queue:orders", "321"])
    night.open()


def pauses_and_finds_one_by_its_body(night: Night) -> str:
    night.follow("orders")
    night.click("#pause-form [type=submit]")
    night.see(".queue-state", "Paused: nothing is delivered.")
    database = Database(connection_parameters())
    database.wait_until_obeyed(night.broker)
    database.close()
    with consumer(night):
        publish(night, *(b'{"order": %d, "to": "eve"}' % n for n in range(40)), b'{"order": 17, "to": "anne@examlpe"}')
        night.open("queues/queue/")
        until(night.browser, lambda page: "41" in row_of(page, "orders"))
        assert len(night.consumed) == 321, "a paused queue delivers nothing"
        night.picture("admin-queues.png")
        night.follow("orders")
        night.follow("Find messages")
        night.type("text", "examlpe")
        night.click("#find-form [type=submit]")
        night.see("#changelist tbody", "anne@examlpe")
        night.see(".paginator", "looked at 41 messages so far, which is all")
        night.picture("admin-find.png")
        night.click("#changelist tbody th a")
        night.see(".field-payload_shown", '"to": "anne@examlpe"')
        night.see(".field-life", "shop")
        message = night.see(".field-number .readonly", "")
        night.open()
        night.see("#broker-problems", "orders is paused")
        night.click("#broker-problems li[id^=paused] a")
        night.click("#pause-form [type=submit]")
        night.see(".queue-state", "Delivering.")
        wait_until(lambda: len(night.consumed) == 321 + 41, "the messages that waited are delivered")
    return message


def follows_its_life_and_publishes_it_again(night: Night, message: str) -> None:
    night.open()
    night.see("#broker-problems", "orders has a dead letter")
    night.click("#broker-problems a[href*='queue=orders']")
    night.see("#reasons", "no such account")
    night.click("#reasons .do a")
    night.see("#changelist tbody", "anne@examlpe")
    night.follow(message)
    night.see(".field-life", "no such account")
    night.picture("admin-message.png")
    night.follow("Edit and publish again")
    night.type("body", '{"order": 17, "to": "anne@example"}')
    night.click(".submit-row [type=submit]")
    until_said(night.browser, "Published message")
    again = night.browser.current_url
    with consumer(night):
        wait_until(lambda: night.consumed[-1] == b'{"order": 17, "to": "anne@example"}', "the corrected order is done")
        until(night.browser, lambda page: is_finished(page, again))
    night.see(".field-life", "ack")


def moves_many_and_cancels(night: Night) -> None:
    with psycopg.connect(**connection_parameters(), autocommit=True) as gate:
        gate.execute(MAKE_GATE)
        gate.execute("select pg_advisory_lock(%s)", [GATE])
        asks_for_all(night, "invoices", "ready", "move")
        night.see("#count", f"{MOVED:,} messages")
        night.type("target", "invoices-old")
        night.click(".submit-row [type=submit]")
        night.see("label[for=bulk-progress]", f"of {MOVED:,}")
        night.see("label[for=bulk-progress]", f"{GATE_AT - 500:,}")
        night.picture("admin-bulk.png")
        # The step under way ends first: the answer to the click waits for it.
        cancel = threading.Thread(target=night.click, args=["#cancel-operation"])
        cancel.start()
        database = Database(connection_parameters())
        database.wait_for_blocked("queues_bulkoperation%for update")
        database.close()
        gate.execute("select pg_advisory_unlock(%s)", [GATE])
        cancel.join()
        night.see(".field-state .readonly", "cancelled")
        gate.execute(DROP_GATE)
    operation = BulkOperation.objects.get()
    assert operation.state == BulkState.CANCELLED
    assert GATE_AT <= operation.done < MOVED
    left, moved = (assert_counts_are_exact(Queue.objects.get(name=name)).ready for name in ("invoices", "invoices-old"))
    assert (left, moved) == (MOVED - operation.done, operation.done)


def asks_for_all(night: Night, queue: str, state: str, action: str) -> None:
    """From the front page to the preview of an action for all messages of a queue."""
    night.open()
    night.follow(queue)
    night.follow("Find messages")
    Select(until(night.browser, lambda page: page.find_element(By.NAME, "state"))).select_by_value(state)
    night.click("#find-form [type=submit]")
    night.see("#changelist tbody", queue)
    preview_all(night, action)


def preview_all(night: Night, action: str) -> None:
    Select(until(night.browser, lambda page: page.find_element(By.NAME, "action"))).select_by_value(action)
    night.click("[name=scope][value=all]")
    night.click("#operate-form button")


def puts_dead_letters_back(night: Night) -> None:
    night.open()
    night.click("#broker-problems a[href*='queue=emails']")
    night.click("#reasons .do a[href*='put-back']")
    night.see("#count", f"{DEAD:,} messages")
    night.click(".submit-row [type=submit]")
    night.see(".field-state .readonly", "done")
    night.see(".field-done .readonly", f"{DEAD}")
    counts = assert_counts_are_exact(Queue.objects.get(name="emails"))
    assert (counts.ready, counts.dead) == (DEAD, 0)
    night.open()
    until(night.browser, lambda page: "dead letters, and" not in page.find_element(By.ID, "broker-problems").text)


def purges(night: Night) -> None:
    night.follow("emails")
    night.see(".figures", f"{DEAD:,}")
    night.picture("admin-queue.png")
    night.follow("Purge")
    night.see("#content", f"emails: {DEAD:,} ready")
    night.type("typed", "email")
    answer_yes(night.browser, "Yes, purge")
    night.see(".errornote", "That is something else.")
    night.type("typed", "emails")
    answer_yes(night.browser, "Yes, purge")
    until_said(night.browser, f"Removed {DEAD:,} messages from emails.")
    assert assert_counts_are_exact(Queue.objects.get(name="emails")).held == 0


def ends_what_holds_back_vacuum(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    report = psycopg.connect(**connection_parameters(), application_name="report")
    report.execute("set transaction isolation level repeatable read")
    report.execute("select count(*) from queues_message")
    pid = report.info.backend_pid
    monkeypatch.setattr("queues.operations.overview.HELD_SECONDS", 0)  # a minute of any other night
    night.open()
    night.see(f"#holder-{pid}", "report of")
    night.click(f"#holder-{pid} a")
    night.see("#content", "select count(*) from queues_message")
    answer_yes(night.browser, "Yes, end the session")
    until_said(night.browser, f"Ended the session {pid}.")
    with pytest.raises(psycopg.OperationalError):
        report.execute("select 1")
    report.close()
    until(night.browser, lambda page: not page.find_elements(By.ID, f"holder-{pid}"))


def finds_every_act(night: Night, message: str) -> None:
    night.open()
    night.follow("Audit chains")
    night.follow("operators")
    night.follow("Rows")
    moved, put_back = BulkOperation.objects.order_by("pk").values_list("pk", flat=True)
    acts = {
        ("add", "queue:orders"), ("add", "key:shop"), ("add", "route:topic:orders→queue:orders"),
        ("pause", "queue:orders"), ("resume", "queue:orders"), ("purge", "queue:emails"),
        ("move", f"bulk:{moved}"), ("cancelled", f"bulk:{moved}"), ("put-back", f"bulk:{put_back}"),
        ("done", f"bulk:{put_back}"),
    }  # fmt: skip

    def rows(page: webdriver.Chrome) -> set[tuple[str, str]]:
        cells = page.execute_script(
            "return [...document.querySelectorAll('#result_list tbody tr')].map((row) =>"
            " ['event', 'record', 'sender_shown'].map((name) => row.querySelector(`.field-${name}`).innerText.trim()))"
        )
        return {(event, id) for event, id, by in cells if by == "ann"}

    def complete(page: webdriver.Chrome) -> bool:
        page.refresh()
        found = rows(page)
        return acts <= found and {"end-backend", "publish"} <= {event for event, _ in found}

    until(night.browser, complete)


def is_refused_as_a_viewer(night: Night) -> None:
    night.click("#logout-form button")
    night.see("h1", "Logged out")  # to go on before that would keep the session
    log_in(night.browser, night.site, "vic", PASSWORD)
    night.see("#broker-busiest", "orders")
    assert not night.browser.find_elements(By.CSS_SELECTOR, ".addlink, a[href*='backends/']")
    night.follow("orders")
    night.see(".queue-state", "Delivering.")
    tools = [tool.text.capitalize() for tool in night.browser.find_elements(By.CSS_SELECTOR, ".object-tools a")]
    assert "Messages" in tools
    assert not {"Purge", "Clone", "Publish"} & set(tools)
    assert not night.browser.find_elements(By.CSS_SELECTOR, "#pause-form, [name=_save], .deletelink")
    page = night.browser.current_url.removesuffix("change/")
    for path in ("purge/", "delete/"):
        night.browser.get(page + path)
        night.see("h1", "Not allowed")
    night.browser.get(f"{page}change/")
    assert night.browser.execute_async_script(POST, f"{page}pause/") == 403
    assert not Queue.objects.get(name="orders").paused


def is_finished(page: webdriver.Chrome, address: str) -> bool:
    """Whether the page of a message is that of a finished one by now."""
    page.get(address)
    return bool(page.find_elements(By.CSS_SELECTOR, ".field-outcome"))


# The others.


def row_of(page: webdriver.Chrome, queue: str) -> list[str]:
    """The cells of a queue in a table of queues."""
    rows: list[list[str]] = page.execute_script(
        "return [...document.querySelectorAll('#content tbody tr')].map((row) =>"
        " [...row.children].map((cell) => cell.innerText.trim()))"
    )
    return next((row for row in rows if queue in row), [])


def publish(night: Night, *bodies: bytes) -> None:
    """The shop: a producer that has the key."""
    with BlipMQ(*night.broker.blipmq, night.key) as client:
        client.publish_many("orders", bodies)
        client.flush()


class consumer:
    """A worker that does every order but those it has no account for, until the end of the block."""

    def __init__(self, night: Night) -> None:
        self.night = night
        self.told: SimpleQueue[None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with Overhop(*self.night.broker.overhop) as client:
            client.subscribe("orders", credits=1000)
            while self.told.empty():
                if (quest := client.next_quest(timeout=0.1)) is None:
                    continue
                self.night.consumed.append(quest.payload)
                if b"examlpe" in quest.payload:
                    client.fail(quest.jid, "no such account")
                else:
                    client.done(quest.jid)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: Any) -> None:
        self.told.put(None)
        self.thread.join()
