"""The admin of the project of this process, walked by its links, its forms and its actions, as a browser would.

What is found is told as texts: pages that fail, links that lead nowhere, numbers for machines that were written for
people. To be imported when Django is set up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

from django.contrib.staticfiles import finders
from django.test import Client
from django.urls import Resolver404, get_script_prefix, resolve

#: Pages opened of those whose addresses differ only in numbers, and of these with the same questions.
ALIKE, ASKED_ALIKE = 3, 1
#: Attributes that lead to other pages.
LINKS = ("href", "src", "action", "formaction", "data-address")
#: Classes that the app's own stylesheet is for.
STYLED = re.compile(r'class="[^"]*\b(chart|flows|found|spark|wide-table)\b')
#: Attributes that are one number or several.
NUMBERS = {
    "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "rx", "refx", "refy", "width", "height", "max", "min", "viewbox",
    "stroke-width", "stroke-dasharray", "font-size", "opacity", "data-every", "markerwidth", "markerheight", "colspan",
}  # fmt: skip
#: Elements whose value is for the server, not for people.
FOR_MACHINES = {"hidden", "checkbox", "radio", "number", "option", "progress", "button"}
GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:[.,'\u00a0\u202f\u066c ]\d{3})+(?![\d.,])")


@dataclass
class Form:
    method: str
    action: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    #: The values of a select or of checkboxes, by name.
    choices: dict[str, list[str]] = field(default_factory=dict)


class Page(HTMLParser):
    """What a page has that is not for people's eyes."""

    def __init__(self, address: str, text: str) -> None:
        super().__init__()
        self.address = address
        self.links: list[str] = []
        self.forms: list[Form] = []
        self.faults: list[str] = []
        self.to_type = ""
        self._select = ""
        self._typing = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._judge(tag, given)
        self.links += [given[name] for name in LINKS if given.get(name)]
        if tag == "form":
            self.forms.append(Form(given.get("method", "get").lower(), given.get("action", "")))
        elif self.forms and tag in ("input", "select", "option", "textarea"):
            self._take(tag, given)
        self._typing = given.get("id") == "to-type"

    def _take(self, tag: str, given: dict[str, str]) -> None:
        form, name, kind = self.forms[-1], given.get("name", ""), given.get("type", "text")
        if tag == "select":
            self._select = name
        elif tag == "option":
            form.choices.setdefault(self._select, []).append(given.get("value", ""))
            if "selected" in given:
                form.fields.append((self._select, given.get("value", "")))
        elif kind in ("checkbox", "radio"):
            form.choices.setdefault(name, []).append(given.get("value", "on"))
            if "checked" in given:
                form.fields.append((name, given.get("value", "on")))
        elif tag == "input" and name and kind not in ("submit", "file"):
            form.fields.append((name, given.get("value", "")))

    def handle_data(self, data: str) -> None:
        if self._typing:
            self.to_type, self._typing = data, False

    def _judge(self, tag: str, given: dict[str, str]) -> None:
        for name, value in given.items():
            machine = name in (*LINKS, "id", "for", "name") or name.startswith("data-")
            if name == "value":
                machine = (given.get("type") if tag == "input" else tag) in FOR_MACHINES
            if (machine and GROUPED.search(value)) or (name in NUMBERS and not _are_numbers(value)):
                self.faults.append(f"{self.address}: <{tag} {name}={value!r}>")


def _are_numbers(text: str) -> bool:
    try:
        return bool([float(re.sub(r"(rem|%)$", "", one)) for one in text.split()])
    except ValueError:
        return not re.search(r"\d", text)


class Crawl:
    """A walk by a user who may do everything. Faults are in `faults`."""

    def __init__(self, user: Any) -> None:
        self.client = Client(raise_request_exception=False)
        self.client.force_login(user)
        self.prefix = get_script_prefix()
        self.faults: list[str] = []
        self.pages: dict[str, Page] = {}
        self._alike: Counter[object] = Counter()
        self._resolved: set[str] = set()

    def walk(self, start: str) -> None:
        """Open the page, and all that its links lead to."""
        waiting = [start]
        while waiting:
            address = waiting.pop(0)
            shape, asked = _shape(address)
            if address in self.pages or self._alike[shape] >= ALIKE or self._alike[shape, asked] >= ASKED_ALIKE:
                continue
            self._alike.update([shape, (shape, asked)])
            page = self.open(address)
            self.pages[address] = page
            waiting += self._leads_to(page)

    def open(self, address: str, **form: Any) -> Page:
        """The page at an address that begins with the project's prefix; with a form it is posted."""
        inside = "/" + address.removeprefix(self.prefix)
        answer: Any = self.client.post(inside, form) if form else self.client.get(inside)
        if 300 <= answer.status_code < 400:
            target = urljoin(address, answer.headers["Location"])
            if not target.startswith(self.prefix):
                self.faults.append(f"{address}: redirects to {target}")
            answer = self.client.get("/" + target.removeprefix(self.prefix))
        shown = f"{'POST ' if form else ''}{address}"
        if answer.status_code >= 400 and answer.status_code != 405:
            self.faults.append(f"{shown}: {answer.status_code} {getattr(answer, 'exc_info', None) or ''}")
        html = answer.headers.get("Content-Type", "").startswith("text/html") and not answer.streaming
        page = Page(address, answer.content.decode() if html else "")
        if html and 'class="errornote"' in answer.content.decode() and not form:
            self.faults.append(f"{shown}: it says that something is wrong")
        if html and STYLED.search(answer.content.decode()):
            own = any(link.partition("?")[0].endswith("queues/site.css") for link in page.links)
            self.faults += [] if own else [f"{shown}: the stylesheet of its tables and charts is missing"]
        self.faults += page.faults
        return page

    def _leads_to(self, page: Page) -> Iterator[str]:
        for link in page.links:
            target = urljoin(page.address, link.partition("#")[0] or page.address)
            if urlsplit(target).netloc or f"{target}/" == self.prefix or target == self.prefix:  # the site's own page
                continue
            if not target.startswith(self.prefix):
                self.faults.append(f"{page.address}: {link} lacks the prefix {self.prefix}")
                continue
            inside = urlsplit("/" + target.removeprefix(self.prefix)).path
            if inside.startswith("/static/"):
                if finders.find(inside.removeprefix("/static/")) is None:
                    self.faults.append(f"{page.address}: there is no file {link}")
                continue
            try:
                resolve(inside)
            except Resolver404:
                self.faults.append(f"{page.address}: {link} leads nowhere")
                continue
            if inside.startswith("/admin/"):
                yield target

    def act(self) -> None:
        """Do every action of every list to all its rows, and say yes where that is asked; deletions come last."""
        lists = [page for page in self.pages.values() if _actions(page)]
        for last in (False, True):
            for page in lists:
                path = page.address.partition("?")[0]
                for action in _actions(page):
                    if ("delete" in action) is last:
                        self._act(path, action)

    def _act(self, path: str, action: str) -> None:
        rows = [value for form in self.open(path).forms for value in form.choices.get("_selected_action", ())]
        if not rows:
            return
        asked = self.open(path, action=action, _selected_action=rows)
        for form in asked.forms:
            fields: dict[str, list[str]] = {}
            for name, value in form.fields:
                fields.setdefault(name, []).append(value)
            if "confirmed" in fields:
                self.open(urljoin(asked.address, form.action or path), **{**fields, "typed": asked.to_type})


def _actions(page: Page) -> list[str]:
    """The actions that a list offers."""
    lists = (form.choices for form in page.forms if "_selected_action" in form.choices)
    return [action for choices in lists for action in choices.get("action", ()) if action]


def _shape(address: str) -> tuple[str, tuple[str, ...]]:
    """The path without numbers, and the names of what is asked."""
    parts = urlsplit(address)
    names = sorted({name for name, _ in parse_qsl(parts.query, keep_blank_values=True)})
    return re.sub(r"\d+|[0-9a-f]{8}-[0-9a-f-]{27}", "N", parts.path), tuple(names)
