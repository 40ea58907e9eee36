"""The audit chains in the operators' pages, and verifying them from there."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.admin import audit, audit_rows
from queues.audit.anchoring import anchor_all
from queues.audit.chains import OPERATORS, PEERBUS, append, journal, queue_chain
from queues.audit.events import AuditEvent
from queues.audit.verify import VerificationProgress, verify
from queues.database.parameters import connection_parameters
from queues.models import ArchivedMessage, AuditChain, AuditRow, AuditVerification, Content, State
from queues.operations import verifications
from queues.operations.verifications import Running, verifier
from tests.queues.admin.test_admin import LOGIN, address
from tests.queues.admin.test_admin import unprivileged as unprivileged  # a fixture
from tests.queues.admin.test_worker import text_of
from tests.queues.store import make_queue, store

#: Seconds that a verification may take to begin: it gives way to everything else that runs.
PATIENCE = 100.0
#: The number of a chain that does not exist.
NOBODYS = 2_000_000_000


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    """The directory in which this test's key and copies of anchors are kept."""
    settings.DATA_DIR = tmp_path
    settings.BROKER_AUDIT_KEY = None
    settings.BROKER_AUDIT_TRUSTED_KEYS = ()


def letters(count: int, first: int = 0, chain: str = PEERBUS) -> AuditChain:
    """Rows of a chain, of which no two are equal."""
    words = ("send", "deliver", "ack")
    append(chain, [AuditEvent(words[n % 3], f"m{n}", "alice", "bob") for n in range(first, first + count)])
    return AuditChain.objects.get(name=chain)


def page(chain: AuditChain) -> str:
    return address("auditchain", "change", chain.pk)


def start(client: Client, chain: AuditChain, **options: Any) -> Any:
    return client.post(reverse("admin:queues_auditchain_verify", args=[chain.pk]), **options)


def rows(client: Client, chain: AuditChain, **query: str) -> Any:
    return client.get(address("auditrow"), {"chain": str(chain.pk), **query})


def seqs(response: Any) -> list[int]:
    return [row.seq for row in response.context["cl"].result_list]


def follow(client: Client, link: str) -> Any:
    return client.get(address("auditrow") + link)


@pytest.mark.django_db
class TestChains:
    """The list of chains, and the page of one."""

    @pytest.fixture
    def chain(self) -> AuditChain:
        """A chain of 1,200 rows that has an anchor and was verified twice, and one event that waits."""
        chain = letters(1200)
        anchor_all()
        chain.anchors.update(at=timezone.now() - timedelta(minutes=3, seconds=9))
        first = timezone.now() - timedelta(hours=2, minutes=5)
        AuditVerification.objects.create(chain=chain, at=first, ok=True, rows=1000, seconds=0.5)
        AuditVerification.objects.create(
            chain=chain, at=first + timedelta(hours=1), ok=False, rows=3, broken_seq=3, finding="altered row: row 3",
            seconds=0.001,
        )  # fmt: skip
        journal(PEERBUS, [AuditEvent("send", "late", "alice", "bob")])
        return chain

    def test_the_list_shows_what_vouches_for_each_chain(self, admin_client: Client, chain: AuditChain) -> None:
        letters(1, chain=OPERATORS)
        shown = text_of(admin_client.get(address("auditchain")))
        hash_hex = bytes(AuditRow.objects.get(chain=chain, seq=1199).hash).hex()
        anchor = chain.anchors.get()
        assert f"operators 1 {bytes(AuditRow.objects.get(chain__name=OPERATORS).hash).hex()[:12]}…" in shown
        assert f"peerbus 1,200 {hash_hex[:12]}…" in shown
        assert f"seq 1,199, 3 minutes ago, key {anchor.key[:8]}…" in shown
        assert "1 hour ago: broken at seq 3: altered row: row 3 (3,000 rows/s)" in shown
        assert "none yet never" in " ".join(shown.split())

    def test_a_successful_verification_is_shown_with_its_rate(self, admin_client: Client, chain: AuditChain) -> None:
        AuditVerification.objects.filter(ok=False).delete()
        assert "2 hours ago: 1,000 rows are right (2,000 rows/s)" in text_of(admin_client.get(address("auditchain")))

    @pytest.mark.parametrize("count", [1, 5])
    def test_the_list_takes_as_many_queries_for_many_chains_as_for_one(
        self, admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, count: int
    ) -> None:
        for n in range(count):
            letters(3, chain=f"queue:{n}")
        # The number of chains, the page, running verifications, results.
        with django_assert_num_queries(LOGIN + 4):
            response = admin_client.get(address("auditchain"))
        assert len(response.context["cl"].result_list) == count

    def test_a_chains_page_shows_its_verifications_and_anchors(self, admin_client: Client, chain: AuditChain) -> None:
        response = admin_client.get(page(chain))
        shown = text_of(response)
        hash_hex = bytes(AuditRow.objects.get(chain=chain, seq=1199).hash).hex()
        anchor = chain.anchors.get()
        for part in (f"Head hash: {hash_hex}", "Rows: 1,200", "Waiting in the journal: 1", f"by hand {anchor.key}"):
            assert part in shown
        assert "broken at seq 3: altered row: row 3 3 0.00 3,000 rows/s" in shown
        assert "right 1,000 0.50 2,000 rows/s" in shown
        assert f'href="{address("auditrow")}?chain={chain.pk}"' in response.content.decode()
        assert "refresh" not in response.content.decode()

    def test_rows_that_were_dropped_by_retention_are_said(self, admin_client: Client, chain: AuditChain) -> None:
        chain.anchors.update(kind="retention", seq=999)
        assert "1,200 , of which 1,000 were dropped by retention" in text_of(admin_client.get(page(chain)))

    def test_nothing_of_the_audit_is_added_changed_or_deleted(self, admin_client: Client, chain: AuditChain) -> None:
        for model, pk in (("auditchain", chain.pk), ("auditrow", 0)):
            assert admin_client.get(address(model, "add")).status_code == 403
            assert admin_client.post(address(model, "delete", pk), {"confirmed": "yes"}).status_code in (302, 403)
            assert admin_client.post(address(model, "change", pk), {"name": "x"}).status_code in (302, 403)
            assert "delete_selected" not in admin_client.get(address(model), follow=True).content.decode()
        chain.refresh_from_db()
        assert (chain.name, AuditRow.objects.count()) == (PEERBUS, 1200)

    def test_chains_need_view_permission_and_verifying_its_own(
        self, unprivileged: Client, chain: AuditChain
    ) -> None:
        for place in (address("auditchain"), page(chain), address("auditrow")):
            assert unprivileged.get(place).status_code == 403
        views = Permission.objects.filter(codename__in=["view_auditchain", "view_auditrow"])
        User.objects.get().user_permissions.set(views)
        for place in (address("auditchain"), page(chain)):
            response = unprivileged.get(place)
            assert response.status_code == 200
            assert "Verify now" not in text_of(response)
        assert start(unprivileged, chain).status_code == 403
        User.objects.get().user_permissions.set(Permission.objects.filter(codename="add_auditverification"))
        assert start(unprivileged, chain).status_code == 403
        assert verifier.running() == {}

    def test_verifying_wants_a_post_and_a_chain(self, admin_client: Client, chain: AuditChain) -> None:
        assert admin_client.get(reverse("admin:queues_auditchain_verify", args=[chain.pk])).status_code == 405
        chain.pk += 1
        assert start(admin_client, chain).status_code == 302
        assert verifier.running() == {}

    def test_a_chain_that_is_called_like_markup_is_text(self, admin_client: Client) -> None:
        chain = letters(1, chain="queue:<script>")
        for place in (address("auditchain"), page(chain), address("auditrow")):
            assert "queue:<script>" not in admin_client.get(place, follow=True).content.decode()


@pytest.mark.django_db
class TestRows:
    """The rows of a chain."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit_rows.AuditRowAdmin, "list_per_page", 4)

    def test_pages_follow_one_another_newest_first(self, admin_client: Client) -> None:
        chain = letters(10)
        letters(3, chain=OPERATORS)
        response, found = rows(admin_client, chain), []
        for _ in range(3):
            found.append(seqs(response))
            last = response
            response = follow(admin_client, response.context["cl"].next_page or "?")
        assert found == [[9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]
        assert last.context["cl"].next_page == ""
        assert seqs(follow(admin_client, last.context["cl"].first_page)) == [9, 8, 7, 6]
        shown = text_of(rows(admin_client, chain))
        assert f"9 {AuditRow.objects.get(chain=chain, seq=9).at:%Y-%m-%d %H:%M:%S}." in shown
        assert f"m9 alice bob {bytes(AuditRow.objects.get(chain=chain, seq=9).hash).hex()[:12]}…" in shown

    def test_without_a_chain_the_letters_are_shown(self, admin_client: Client) -> None:
        letters(1, chain=OPERATORS)
        only = admin_client.get(address("auditrow"), follow=True)
        assert seqs(only) == [0]
        chain = letters(2)
        response = admin_client.get(address("auditrow"), {"q": "m1"}, follow=True)
        assert response.redirect_chain == [(f"{address('auditrow')}?q=m1&chain={chain.pk}", 302)]
        assert seqs(response) == [1]

    def test_without_any_chain_there_is_nothing(self, admin_client: Client) -> None:
        assert seqs(admin_client.get(address("auditrow"))) == []

    def test_the_rows_of_an_id_come_in_order(self, admin_client: Client) -> None:
        chain = letters(3)
        append(
            PEERBUS, [AuditEvent(word, "m1", "alice", "bob") for word in ("deliver", "ack", "deliver", "ack", "ack")]
        )
        letters(3, chain=OPERATORS)
        for search in ("m1", "id:m1"):
            first = rows(admin_client, chain, q=search)
            rest = follow(admin_client, first.context["cl"].next_page)
            assert (seqs(first), seqs(rest), rest.context["cl"].next_page) == ([1, 3, 4, 5], [6, 7], "")
        assert seqs(rows(admin_client, chain, q="m")) == []
        assert seqs(rows(admin_client, chain, q="m1", event="ack")) == [4, 6, 7]

    def test_a_message_is_found_in_rows_that_it_shares(self, admin_client: Client) -> None:
        append(queue_chain("orders"), [AuditEvent("publish", "100-199", "shop", "orders"), *(
            AuditEvent("deliver", id, "orders", "") for id in ("100-149", "150", "151-199")
        )])  # fmt: skip
        chain = AuditChain.objects.get(name=queue_chain("orders"))
        found = rows(admin_client, chain, q="150")
        assert seqs(found) == [0, 2]
        assert "100-199" in text_of(found)
        assert seqs(rows(admin_client, chain, q="id:120", event="deliver")) == [1]
        assert seqs(rows(admin_client, chain, q="100-149")) == [1]
        assert seqs(rows(admin_client, chain, q="99")) == []

    def test_an_id_is_found_by_its_index_in_a_chain_without_statistics(self, admin_client: Client) -> None:
        chain = letters(3000)
        with connection.cursor() as cursor:
            cursor.execute("set local enable_seqscan = off")
        plan = rows(admin_client, chain, q="m7").context["cl"].queryset[:5].explain()
        today = f"queues_audit_{timezone.now():%Y%m%d}"
        assert f"{today}_record_id_idx" in plan
        assert f"{today}_seq" not in plan

    @pytest.mark.parametrize(
        ("query", "wanted"),
        [
            ({"event": "ack"}, lambda n: n % 3 == 2),
            ({"q": "from:carol"}, lambda n: n in (5, 40)),
            ({"q": "to:dave"}, lambda n: n in (5, 40)),
            ({"q": "from:carol", "event": "send"}, lambda n: n == 40),
            ({"q": "from:absent"}, lambda n: False),
            ({"q": "from:"}, lambda n: False),
        ],
    )
    def test_events_and_names_are_looked_for_piece_by_piece(
        self,
        admin_client: Client,
        monkeypatch: pytest.MonkeyPatch,
        query: dict[str, str],
        wanted: Callable[[int], bool],
    ) -> None:
        monkeypatch.setattr(audit_rows, "WINDOW", 7)
        events = [AuditEvent(("send", "deliver", "ack")[n % 3], f"m{n}", "alice", "bob") for n in range(41)]
        events[5] = AuditEvent("ack", "m5", "carol", "dave")
        events[40] = AuditEvent("send", "m40", "carol", "dave")
        append(PEERBUS, events)
        letters(5, chain=OPERATORS)
        chain = AuditChain.objects.get(name=PEERBUS)
        wanted_seqs = [n for n in range(40, -1, -1) if wanted(n) and (n != 40 or "ack" not in query.values())]
        response, found = rows(admin_client, chain, **query), []
        for _ in range(30):
            found += seqs(response)
            if not response.context["cl"].next_page:
                break
            response = follow(admin_client, response.context["cl"].next_page)
        assert found == wanted_seqs
        assert "Looked at seq 0 to " in text_of(response)

    def test_a_page_of_matches_says_how_far_it_has_looked(self, admin_client: Client) -> None:
        response = rows(admin_client, letters(30), event="send")
        assert seqs(response) == [27, 24, 21, 18]
        assert "Looked at seq 18 to 29." in text_of(response)

    def test_looking_ends_where_retention_has_dropped_the_rest(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(audit_rows, "WINDOW", 7)
        chain = letters(30)
        with connection.cursor() as cursor:
            cursor.execute("select set_config('fivewire.audit_upkeep', 'on', true)")
            cursor.execute("delete from queues_audit where seq < 25")
        response = rows(admin_client, chain, event="none")
        assert response.context["cl"].next_page == ""
        assert "Looked at seq 25 to 29." in text_of(response)

    def test_the_events_to_choose_from_are_the_recent_ones(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(audit_rows, "NEWEST", 2)
        chain = letters(6)
        for query, offered in (({}, "All ack deliver"), ({"event": "send"}, "All ack deliver send")):
            assert f"By event {offered}" in text_of(rows(admin_client, chain, **query))

    def test_a_page_of_rows_takes_as_many_queries_for_many_as_for_few(
        self, admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        chain = letters(30)
        for query, more in (({}, 0), ({"q": "m1"}, 0), ({"q": "1"}, 0), ({"event": "ack"}, 2)):
            # The chains, the events, the rows; to look piece by piece also the chain's ends.
            with django_assert_num_queries(LOGIN + 3 + more):
                rows(admin_client, chain, **query)

    def test_a_wrong_address_leads_to_the_first_page(self, admin_client: Client) -> None:
        chain = letters(3)
        for query in ({"after": "x"}, {"after": "1,2"}, {"after": "-1"}, {"after": "9" * 30}, {"nonsense": "1"}):
            response = admin_client.get(address("auditrow"), {"chain": str(chain.pk), **query})
            assert (response.status_code, response.headers["Location"][-4:]) == (302, "?e=1")
        for nonsense in ("x", "-1", "9" * 30):
            assert seqs(admin_client.get(address("auditrow"), {"chain": nonsense})) == []

    def test_a_seq_alone_is_no_row(self, admin_client: Client) -> None:
        letters(1), letters(1, chain=OPERATORS)
        assert admin_client.get(address("auditrow", "change", 0)).status_code == 302

    def test_the_index_leads_to_the_chains_and_not_to_their_rows(self, admin_client: Client) -> None:
        shown = text_of(admin_client.get(reverse("admin:index")))
        assert "Audit chains" in shown
        assert "Audit rows" not in shown

    def test_with_many_chains_only_the_chosen_one_is_offered(self, admin_client: Client) -> None:
        AuditChain.objects.bulk_create(AuditChain(name=f"queue:{n:03}") for n in range(60))
        chain = AuditChain.objects.get(name="queue:007")
        shown = text_of(rows(admin_client, chain))
        assert "queue:007" in shown
        assert "queue:008" not in shown


@pytest.mark.django_db
class TestMessages:
    """From a message to its rows."""

    def test_a_message_leads_to_its_rows_in_its_queues_chain(self, admin_client: Client) -> None:
        queue = make_queue("orders")
        for message in (*store(queue), *store(queue, State.DEAD, origin_id=77)):
            number = str(message.origin_id or message.pk)
            events = [AuditEvent("publish", id, "", "orders") for id in (number, "1")]
            append(queue_chain("orders"), events)
            append(queue_chain("orders"), [AuditEvent("deliver", number, "orders", "")])
            html = admin_client.get(address("message", "change", message.pk)).content.decode()
            link = rows_link(html)
            append(queue_chain("orders"), [AuditEvent("settle", f"{number}-{int(number) + 9}", "", "")])
            found = [(row.event, row.record_id) for row in admin_client.get(link).context["cl"].result_list]
            assert found == [("publish", number), ("deliver", number), ("settle", f"{number}-{int(number) + 9}")]

    def test_a_letter_leads_to_its_rows_by_its_key(self, admin_client: Client) -> None:
        queue = make_queue("_peer/bob", kind="mailbox")
        append(PEERBUS, [AuditEvent("send", "m1", "alice", "bob"), AuditEvent("send", "m2", "alice", "bob")])
        [letter] = store(queue, key="m1", content=Content.LETTER)
        html = admin_client.get(address("message", "change", letter.pk)).content.decode()
        assert seqs(admin_client.get(rows_link(html))) == [0]

    def test_a_finished_message_leads_to_its_rows_too(self, admin_client: Client) -> None:
        queue, now = make_queue("orders"), timezone.now()
        append(queue_chain("orders"), [AuditEvent("settle", "5", "app", "")])
        ArchivedMessage.objects.create(
            id=5, queue=queue, outcome=0, attempts=0, published_at=now, finished_at=now, size=1
        )
        html = admin_client.get(address("archivedmessage", "change", 5)).content.decode()
        assert seqs(admin_client.get(rows_link(html))) == [0]

    def test_a_message_of_a_queue_without_a_chain_is_not_audited(self, admin_client: Client) -> None:
        letters(1)
        [message] = store(make_queue())
        assert "Audit: not audited" in text_of(admin_client.get(address("message", "change", message.pk)))


def rows_link(html: str) -> str:
    """The address that the link to the audit rows leads to."""
    [link] = re.findall(r'href="(/admin/queues/auditrow/[^"]*)"', html)
    return unescape(link)


# Verifying: what another process does is seen here, so everything is committed.


@pytest.fixture
def patient() -> Iterator[Callable[[], None]]:
    """Waits until nothing is being verified any more; so does the end of the test."""

    def wait() -> None:
        deadline = time.monotonic() + PATIENCE
        while verifier.running():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    yield wait
    wait()


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch, patient: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Keeps verifications from ending until it is called."""
    launch, launched = verifications._launch, list[subprocess.Popen[str]]()

    def launch_and_stop(*arguments: Any) -> subprocess.Popen[str]:
        launched.append(launch(*arguments))
        launched[-1].send_signal(signal.SIGSTOP)
        return launched[-1]

    def let_all_go_on() -> None:
        for process in launched:
            process.send_signal(signal.SIGCONT)

    monkeypatch.setattr(verifications, "_launch", launch_and_stop)
    yield let_all_go_on
    let_all_go_on()


@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(300)
class TestVerifying:
    """In a process of its own."""

    def test_a_click_verifies_the_chain_and_the_result_stays(
        self, admin_client: Client, patient: Callable[[], None], go_on: Callable[[], None]
    ) -> None:
        chain = letters(2000)
        begun = start(admin_client, chain, follow=True)
        assert begun.redirect_chain == [(page(chain), 302)]
        assert "Verifying peerbus." in text_of(begun)
        assert 'data-every="1"' in begun.content.decode()
        assert "Verify now" not in text_of(begun)
        go_on()
        patient()
        verification = AuditVerification.objects.get()
        assert (verification.chain, verification.ok, verification.rows) == (chain, True, 2000)
        after = admin_client.get(page(chain))
        assert "2,000 rows are right" in text_of(after)
        assert "Verify now" in text_of(after)
        assert "data-every" not in after.content.decode()

    def test_a_finding_is_shown_with_its_seq(self, admin_client: Client, patient: Callable[[], None]) -> None:
        chain = letters(2000)
        with connection.cursor() as cursor:
            cursor.execute("alter table queues_audit disable trigger user")
            cursor.execute("update queues_audit set sender = 'mallory' where seq = 1234")
            cursor.execute("alter table queues_audit enable trigger user")
        start(admin_client, chain)
        patient()
        assert "broken at seq 1234: altered row" in text_of(admin_client.get(page(chain)))
        assert "broken at seq 1234: altered row" in text_of(admin_client.get(address("auditchain")))

    def test_a_second_click_shows_the_one_that_runs(
        self, admin_client: Client, patient: Callable[[], None], go_on: Callable[[], None]
    ) -> None:
        chain = letters(10)
        start(admin_client, chain)
        again = start(admin_client, chain, follow=True)
        assert "Peerbus is being verified already." in text_of(again)
        go_on()
        patient()
        assert AuditVerification.objects.count() == 1
        assert [entry.change_message for entry in LogEntry.objects.all()] == ["Verification started."]

    def test_verifications_of_other_processes_are_shown_with_their_progress(
        self, admin_client: Client, patient: Callable[[], None]
    ) -> None:
        chain = letters(10)
        with psycopg.connect(**connection_parameters(), autocommit=True) as elsewhere:
            report = verifications.reporter(elsewhere, chain.pk)
            report(VerificationProgress(340_000, 1_000_000))
            for place in (page(chain), address("auditchain")):
                response = admin_client.get(place)
                assert "verifying: 34 %, 340,000 of 1,000,000 rows" in text_of(response)
                assert "data-every" in response.content.decode()
            assert "Peerbus is being verified already." in text_of(start(admin_client, chain, follow=True))
        patient()
        assert not AuditVerification.objects.exists()

    def test_progress_is_said_from_time_to_time_only(
        self, patient: Callable[[], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(verifications, "SAY_EVERY", 30.0)
        with psycopg.connect(**connection_parameters(), autocommit=True) as elsewhere:
            report = verifications.reporter(elsewhere, NOBODYS)
            report(VerificationProgress(1, 9))
            report(VerificationProgress(2, 9))
            assert verifications.said() == {NOBODYS: Running(1, 9)}

    def test_of_two_that_start_at_once_in_two_processes_one_verifies(self) -> None:
        chain = letters(10)
        with psycopg.connect(**connection_parameters(), autocommit=True) as elsewhere:
            elsewhere.execute("select pg_advisory_lock(%s, %s)", (verifications.LOCK, chain.pk))
            verifications.run(chain.pk)
            assert not AuditVerification.objects.exists()
            elsewhere.execute("select pg_advisory_unlock_all()")  # the session itself may end a moment later
        verifications.run(chain.pk)
        assert AuditVerification.objects.get().ok

    def test_why_a_chain_could_not_be_verified_is_shown(
        self, admin_client: Client, patient: Callable[[], None], tmp_path: Path
    ) -> None:
        chain = letters(10)
        (tmp_path / "audit_key").write_text("no key")
        (tmp_path / "audit_key").chmod(0o600)
        start(admin_client, chain)
        patient()
        assert not AuditVerification.objects.exists()
        assert "InvalidAuditKey: The text is no Ed25519 key" in text_of(admin_client.get(page(chain)))
        (tmp_path / "audit_key").unlink()
        start(admin_client, chain)
        patient()
        assert "InvalidAuditKey" not in text_of(admin_client.get(page(chain)))

    def test_a_process_that_cannot_be_started_is_said(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chain = letters(10)
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        assert "The verification could not be started" in text_of(start(admin_client, chain, follow=True))
        assert verifier.running() == {}

    def test_a_process_that_is_killed_leaves_nothing_running(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch, patient: Callable[[], None]
    ) -> None:
        chain = letters(10)
        launched: list[subprocess.Popen[str]] = []
        launch = verifications._launch

        def killed(*arguments: Any) -> subprocess.Popen[str]:
            launched.append(launch(*arguments))
            launched[0].kill()
            return launched[0]

        monkeypatch.setattr(verifications, "_launch", killed)
        start(admin_client, chain)
        patient()
        assert "It ended with status -9." in text_of(admin_client.get(page(chain)))

    def test_the_page_says_what_the_shell_has_found(self, admin_client: Client) -> None:
        chain = letters(10)
        verify(PEERBUS)
        assert "10 rows are right" in text_of(admin_client.get(page(chain)))


def test_a_share_of_nothing_is_nothing() -> None:
    assert (Running().percent, Running(1, 3).percent, audit._rate(1, 0.0)) == (0, 33, "-")
