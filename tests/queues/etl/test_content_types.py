"""The names of content types, which a job that knows no Django has for itself."""

from __future__ import annotations

from queues.engine.message import Content as InMemory
from queues.etl.job.reading import CONTENTS
from queues.models import Content


def test_an_export_names_every_content_type_there_is() -> None:
    assert dict(Content.choices) == CONTENTS
    assert [int(content) for content in InMemory] == list(CONTENTS)
