"""The admin: every form, list and address, with values at and past every limit. The answer is a form's error or 4xx,
and peers on the same process notice nothing."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import pytest
from django.conf import settings
from django.contrib import admin
from django.urls import URLPattern, URLResolver, get_resolver
from hypothesis import given
from hypothesis import strategies as st

from brokersite.environment import CHECKOUT
from tests.hostile.browser import Browser, Form, Page, encoded, query
from tests.hostile.pulse import Pulse
from tests.hostile.unharmed import EXAMPLES, PeerNeighbour, drawn, unharmed
from tests.hostile.values import INTEGERS, NOT_UTF8, octets
from tests.peers.running import WebBroker, home
from tests.waiting import wait_until
from tests.wire.broker import Database

PASSWORD: Final = "a password of the test"
#: Existing rows have ids from here on, and no value here is one: nothing is deleted or paused that a test needs.
FIRST: Final = 5000

#: Inputs that once did harm, or might.
VALUES: Final[tuple[str | bytes, ...]] = (
    "", "\0", "a\0b", "\ud800", *NOT_UTF8, "é" * 255, "😀" * 256, "x" * 2001, "x" * 7000, "9" * 5000,
    *map(str, (-1, 0, 2**15, 2**31, 2**63 - 1, 2**63, -(2**63) - 1)), "1e400", "nan", "Infinity", "1,2", "0 0 31 2 *",
    "0001-01-01", "9999-12-31T23:59:59-23:59", "[", '{"a": "\\u0000"}', "%", "../..", "queue:", "*", "1:a",
)  # fmt: skip
#: Bytes of an address; the server closes the connection for a line that is longer than 16,384.
LONGEST: Final = 12_000
#: Those that an address has no room for.
LONG: Final[tuple[str | bytes, ...]] = ("x" * 100_000, "😀" * 70_000, "x" * 3_000_000)
TEXTS: Final = octets(2001) | st.sampled_from(VALUES) | st.sampled_from(INTEGERS).map(str)

#: Fields whose first value on a page that adds something is wanted.
FILLED: Final = {"cron": "* * * * *", "source": "queue:a", "target": "queue:b"}
#: Parameters of lists besides those of their own links.
PARAMETERS: Final = ("q", "o", "p", "all", "e", "after", "queue", "queues", "state", "within", "_popup", "_to_field",
                     "_facets", "_changelist_filters", "id__in", "id__range", "pk", "pk__gt", "a__b", "term", "page",
                     "app_label", "model_name", "field_name", "next")  # fmt: skip
LOOKUPS: Final = ("", "__gt", "__in", "__range", "__isnull", "__regex", "__year")
Value = TypeVar("Value")
#: The next place in such a list; each test begins with the first one, whatever ran before it.
_places = itertools.count()


def routes() -> Iterator[str]:
    """Every address of the site, its variable parts in angle brackets."""

    def below(patterns: list[URLPattern | URLResolver], beginning: str) -> Iterator[str]:
        for pattern in patterns:
            route = beginning + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                yield from below(pattern.url_patterns, route)
            else:
                yield re.sub(r"\(\?P(<\w+>)[^)]*\)", r"\1", route).replace("^", "").replace("$", "")

    for route in below(get_resolver().url_patterns, "/"):
        if route != "/admin/logout/":
            yield route


ROUTES: Final = sorted(set(routes()))
MODELS: Final = {f"{m._meta.app_label}/{m._meta.model_name}": m for m in admin.site._registry}
VARIABLE: Final = [route for route in ROUTES if "<" in route]
FIXED: Final = [route for route in ROUTES if "<" not in route]
#: Each model's pages, and all others.
PARTS_OF_THE_SITE: Final = [*MODELS, "others"]
#: As above; the short run has few of them, and those drawn by chance of all.
EACH_PART: Final = [
    part if part in ("queues/queue", "others") else pytest.param(part, marks=pytest.mark.long)
    for part in PARTS_OF_THE_SITE
]
#: Pages with forms; those of an object that is there.
CHANGED: Final = [f"/admin/{model}/{{}}/change/" for model in MODELS] + ["/admin/auth/user/{}/password/"]
PAGES: Final = FIXED + CHANGED


def of(part: str, pages: list[str]) -> list[str]:
    """The pages of a part of the site."""
    models = [page for page in pages if "/".join(page.split("/")[2:4]) in MODELS]
    return [p for p in models if p.startswith(f"/admin/{part}/")] if part in MODELS else sorted({*pages} - {*models})


def filled_in(route: str, value: str | bytes) -> str:
    """An address with this value in its variable parts."""
    return re.sub(r"<[^>]*>", lambda found: encoded(value), route)


@pytest.fixture(scope="module")
def site(store: Database) -> Iterator[WebBroker]:
    """A site with an object of each model, and a person who may do everything."""
    for (name,) in store.rows("select sequencename from pg_sequences where sequencename like '%%\\_id\\_seq'"):
        store.rows("select setval(%s, %s)", name, FIRST)
    make = (
        "import django; django.setup();"
        "from django.contrib.auth.models import User; from tests.brokersite.one_of_each import one_of_each;"
        f"one_of_each(); User.objects.create_superuser('admin', '', {PASSWORD!r})"
    )
    environment = {
        **os.environ, "DATABASE_URL": store.url, "DATA_DIR": home(store.url), "SECRET_KEY": settings.SECRET_KEY,
        "DJANGO_SETTINGS_MODULE": "brokersite.settings",
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", make], env=environment, cwd=CHECKOUT, check=True)
    with WebBroker(store) as running:
        yield running


@pytest.fixture(scope="module")
def neighbour(site: WebBroker, store: Database) -> Iterator[PeerNeighbour]:
    made = PeerNeighbour(site)
    wait_until(lambda: store.value("select count(*) from queues_node") == 1, "the nodes that no process runs are gone")
    yield made
    made.close()


@pytest.fixture(scope="module")
def pulsing(site: WebBroker, neighbour: PeerNeighbour) -> Iterator[PeerNeighbour]:
    made = PeerNeighbour(site, "pulse")
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser(site: WebBroker) -> Iterator[Browser]:
    made = Browser(site.address)
    with contextlib.closing(made):
        made.log_in("admin", PASSWORD)
        yield made


@pytest.fixture
def stranger(site: WebBroker) -> Iterator[Browser]:
    made = Browser(site.address)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def same_values_in_every_run() -> None:
    global _places
    _places = itertools.count()


@pytest.fixture(autouse=True)
def nothing_else_harmed(
    site: WebBroker, neighbour: PeerNeighbour, pulsing: PeerNeighbour, store: Database, browser: Browser
) -> Iterator[None]:
    with unharmed(store, lambda: site.log, neighbour.served), Pulse(pulsing.served, store, site.process.pid):
        yield
    assert browser.is_logged_in, "what the values did not reach was not tested"


def is_answered(page: Page) -> Page:
    assert page.status < 500, (page.status, unquote(page.address)[:300])
    assert "Traceback (most recent" not in page.text
    return page


def located(store: Database, page: str) -> str:
    """A page's address, with the id of an object that there is."""
    if "{}" not in page:
        return page
    model = MODELS["/".join(page.split("/")[2:4])]
    assert model._meta.pk is not None
    ids = [id for (id,) in store.rows(f"select {model._meta.pk.column} from {model._meta.db_table} order by 1")]
    own = [id for id in ids if not isinstance(id, int) or id >= FIRST]
    return page.format([*own, *ids, FIRST][0])


def ready(form: Form) -> Form:
    """The form, filled in as a person would."""
    for name, values in form.fields.items():
        if name in FILLED:
            form.fields[name] = [FILLED[name]]
        elif values == [""] and form.method == "post" and not form.choices.get(name):
            form.fields[name] = ["1"]
    return form


def a_part_of(values: Sequence[Value]) -> Sequence[Value]:
    """One of these, another at each place; all of them if more examples are wanted."""
    place = next(_places) % len(values)
    return values if EXAMPLES else values[place : place + 1]


def some() -> Sequence[str | bytes]:
    """Some of the values."""
    return a_part_of(VALUES)


@pytest.mark.parametrize("part", PARTS_OF_THE_SITE)
def test_kept_values_in_all_fields_of_a_form_are_answered(browser: Browser, store: Database, part: str) -> None:
    for page in of(part, PAGES):
        for form in map(ready, is_answered(browser.get(located(store, page))).forms):
            for _ in range(3):
                given = {name: some()[0] for name in form.names}
                if form.method == "post":
                    is_answered(browser.submit(form, given))
                else:
                    is_answered(browser.get(f"{form.action}?{query(form.filled(given))}"[:LONGEST]))


@pytest.mark.parametrize("part", EACH_PART)
def test_a_kept_value_in_any_field_of_a_form_is_answered(browser: Browser, store: Database, part: str) -> None:
    for page in of(part, PAGES):
        for form in map(ready, is_answered(browser.get(located(store, page))).forms):
            for name in form.names:
                for value in some():
                    is_answered(browser.submit(form, {name: value}))
            if form.method == "post":
                is_answered(browser.submit(form, {([*form.names, "more"])[0]: LONG[next(_places) % len(LONG)]}))
                is_answered(browser.submit(form, {f"more{n}": "" for n in range(2000)}))


@pytest.mark.parametrize("model", MODELS)
def test_an_action_on_rows_that_cannot_be_is_answered(browser: Browser, model: str) -> None:
    for form in browser.get(f"/admin/{model}/").forms:
        for action in form.choices.get("action", ()):
            for value in some():
                chosen = {"action": action, "_selected_action": value}
                is_answered(browser.submit(form, chosen))
                is_answered(browser.submit(form, {**chosen, "confirmed": "yes", "post": "yes", "index": "0"}))


@pytest.mark.parametrize("part", EACH_PART)
def test_a_kept_value_in_any_parameter_is_answered(browser: Browser, part: str) -> None:
    fields = [field.name for field in MODELS[part]._meta.get_fields()] if part in MODELS else []
    for page in of(part, FIXED):
        lookups = {f + lookup for f in fields for lookup in a_part_of(LOOKUPS)}
        names = {*PARAMETERS, *browser.get(page).parameters, *lookups}
        if page.endswith("/add/"):
            every = query((name, some()[0]) for name in sorted(names))
            is_answered(browser.get(f"{page}?{every[:LONGEST]}"))
            continue
        for name in sorted(names):
            for value in some():
                is_answered(browser.get(f"{page}?{query([(name, value)])}"))


@pytest.mark.parametrize("part", PARTS_OF_THE_SITE)
def test_a_kept_value_in_an_address_is_answered(browser: Browser, part: str) -> None:
    for route in of(part, VARIABLE):
        for value in some():
            address = filled_in(route, value)
            is_answered(browser.get(address))
            is_answered(browser.post(address, [("confirmed", "yes"), ("post", "yes")]))


@pytest.mark.parametrize("name", ["Cookie", "Host", "Referer", "Origin", "X-Forwarded-For", "Accept-Language"])
def test_a_kept_value_in_a_header_is_answered(stranger: Browser, name: str) -> None:
    for value in map(encoded, VALUES):
        given = f"sessionid={value[:4000]}; csrftoken={value[:4000]}; messages={value}" if name == "Cookie" else value
        is_answered(stranger.get("/admin/login/?next=/admin/", {name: given}))


ADDRESSES: Final = st.builds(filled_in, st.sampled_from(VARIABLE), TEXTS)
QUERIES: Final = st.lists(st.tuples(st.sampled_from(PARAMETERS) | st.text(max_size=20), TEXTS), max_size=4).map(query)


@drawn
@given(ADDRESSES | st.sampled_from(FIXED), QUERIES)
def test_a_drawn_address_is_answered(browser: Browser, address: str, given: str) -> None:
    is_answered(browser.get(f"{address}?{given}"[:LONGEST]))


@drawn
@given(st.sampled_from(PAGES), st.lists(st.tuples(st.integers(0, 30), octets() | TEXTS), max_size=4))
def test_a_drawn_form_is_answered(
    browser: Browser, store: Database, page: str, changes: list[tuple[int, str | bytes]]
) -> None:
    for form in map(ready, is_answered(browser.get(located(store, page))).forms):
        names = form.names
        given: dict[str, Any] = {names[n % len(names)]: value for n, value in changes if names}
        is_answered(browser.submit(form, given))
