"""A browser, as far as it matters here: cookies, addresses and forms, with bytes that no browser sends."""

from __future__ import annotations

import http.client
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote_from_bytes, urljoin, urlsplit

from tests.waiting import PATIENCE

FORM: Final = "application/x-www-form-urlencoded"
#: Fields that are not a person's: the token of the form, and what reaches every row there is.
OWN: Final = {"csrfmiddlewaretoken", "select_across"}


def encoded(value: str | bytes) -> str:
    """A value as it is in an address or a form; half of a surrogate pair is three bytes."""
    return quote_from_bytes(value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass"), safe="")


def query(fields: Iterable[tuple[str, str | bytes]]) -> str:
    return "&".join(f"{encoded(name)}={encoded(value)}" for name, value in fields)


@dataclass
class Form:
    """A form of a page: its target, and its fields untouched."""

    action: str
    method: str
    fields: dict[str, list[str]] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The fields that a person fills in."""
        return [name for name in self.fields if name not in OWN]

    def filled(self, given: Mapping[str, str | bytes]) -> list[tuple[str, str | bytes]]:
        """The form's data after these fields are changed."""
        untouched = [(name, value) for name, values in self.fields.items() if name not in given for value in values]
        return [*untouched, *given.items()]


class Page(NamedTuple):
    """An answer."""

    status: int
    text: str
    address: str

    @property
    def forms(self) -> list[Form]:
        """Those that do not end the session."""
        found = _Forms(self.address)
        found.feed(self.text)
        return [form for form in found.forms if not form.action.endswith("/logout/")]

    @property
    def parameters(self) -> set[str]:
        """The names in the addresses that lead from this list to itself."""
        found = _Forms(self.address)
        found.feed(self.text)
        return {name for link in found.links for name, _ in parse_qsl(urlsplit(link).query, keep_blank_values=True)}


class Browser:
    """A connection with its cookies."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
        self.cookies: dict[str, str] = {}

    def get(self, path: str, headers: Mapping[str, str] = {}) -> Page:
        return self._request("GET", path, b"", headers)

    def post(self, path: str, fields: Iterable[tuple[str, str | bytes]] = ()) -> Page:
        headers = {"Content-Type": FORM, "X-CSRFToken": self.cookies.get("csrftoken", "")}
        return self._request("POST", path, query(fields).encode(), headers)

    def submit(self, form: Form, given: Mapping[str, str | bytes]) -> Page:
        """Send a form with these fields changed."""
        if form.method == "post":
            return self.post(form.action, form.filled(given))
        return self.get(f"{form.action}?{query(form.filled(given))}")

    def log_in(self, name: str, password: str) -> None:
        self.get("/admin/login/")
        page = self.post("/admin/login/?next=/admin/", [("username", name), ("password", password)])
        assert page.status == 302, page

    @property
    def is_logged_in(self) -> bool:
        return self.get("/admin/").status == 200

    def _request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Page:
        cookies = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        try:
            self._connection.request(method, path, body, {**cookies, **headers})
            response = self._connection.getresponse()
            text = response.read().decode(errors="replace")
        except (http.client.HTTPException, ConnectionError) as error:
            self._connection.close()
            raise AssertionError(f"{method} {path[:300]} was not answered: {error!r}") from error
        for line in response.headers.get_all("Set-Cookie", []):
            for name, morsel in SimpleCookie(line).items():
                self.cookies[name] = morsel.value
                if morsel["max-age"] == "0" or not morsel.value:
                    del self.cookies[name]
        return Page(response.status, text, path)

    def close(self) -> None:
        self._connection.close()


class _Forms(HTMLParser):
    """Reads the forms and links of a page."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._form: Form | None = None
        self._select: tuple[str, bool] | None = None
        self._text: str | None = None
        self.forms: list[Form] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in given}
        if tag == "a" and attributes.get("href", "").startswith("?"):
            self.links.append(attributes["href"])
        elif tag == "form":
            action = urljoin(self._address, attributes.get("action") or self._address)
            self._form = Form(action, attributes.get("method", "get").lower())
            self.forms.append(self._form)
        elif self._form is not None:
            self._field(self._form, tag, attributes)

    def _field(self, form: Form, tag: str, attributes: dict[str, str]) -> None:
        name = attributes.get("name", "")
        if tag == "option" and self._select is not None:
            chosen, multiple = self._select
            form.choices[chosen].append(attributes.get("value", ""))
            if "selected" in attributes or not (multiple or form.fields[chosen]):
                form.fields[chosen] = [*(form.fields[chosen] if multiple else ()), attributes.get("value", "")]
        elif not name:
            return
        elif tag == "select":
            self._select = name, "multiple" in attributes
            form.fields[name], form.choices[name] = [], []
        elif tag == "textarea":
            self._text, form.fields[name] = name, [""]
        elif tag == "input" and attributes.get("type") in ("checkbox", "radio", "submit"):
            form.fields.setdefault(name, [])
            if "checked" in attributes or name == "_save":
                form.fields[name].append(attributes.get("value", "on"))
        elif tag in ("input", "button"):
            form.fields[name] = [attributes.get("value", "")]

    def handle_data(self, data: str) -> None:
        if self._text is not None and self._form is not None:
            self._form.fields[self._text] = [data]

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "select":
            self._select = None
        elif tag == "textarea":
            self._text = None
