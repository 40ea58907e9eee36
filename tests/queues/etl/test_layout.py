"""Names of directories: safe as paths, and read back as the names they stand for."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.etl.job.layout import Part, compacted, day_of, encoded

NAMES = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=255)


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("orders", "orders"),
        ("a/b=c %d", "a%2Fb%3Dc%20%25d"),
        ("..", "%2E."),
        ("приём", "приём"),
        ("007", "%3007"),
        ("2026-11-22", "%32026-11-22"),
        ("1e5", "%31e5"),
        ("2026-orders", "2026-orders"),
        ("NaN", "%4EaN"),
        ("null", "%6Eull"),
        ("__HIVE_DEFAULT_PARTITION__", "%5F_HIVE_DEFAULT_PARTITION__"),
        ("reply:1", "reply%3A1"),
        ("0x1p3", "%30x1p3"),
        ("-Infinity", "%2DInfinity"),
        ("epoch", "%65poch"),
        ("٣.5", "٣%2E5"),
    ],
)
def test_a_name_becomes_a_directory(name: str, directory: str) -> None:
    assert encoded(name) == directory


@given(NAMES)
def test_a_directory_is_a_safe_path_that_file_systems_take(name: str) -> None:
    directory = encoded(name)
    assert len(directory.encode()) <= 200
    assert not re.search(r'[\x00-\x20/\\:*?"<>|{}^\[\]\'#=\x7f]', directory)
    assert not directory.startswith("_") or name.startswith("_")


@given(NAMES)
def test_a_short_name_is_read_back_exactly(name: str) -> None:
    directory = encoded(name)
    if "~" not in directory[-17:]:
        assert unquote(directory) == name


@given(NAMES, NAMES)
def test_two_names_never_share_a_directory(name: str, other: str) -> None:
    assert (encoded(name) == encoded(other)) == (name == other)


def test_a_long_name_is_cut_and_told_apart_by_its_hash() -> None:
    one, other = "я" * 254 + "1", "я" * 254 + "2"
    assert encoded(one) != encoded(other)
    assert re.fullmatch("я+~[0-9a-f]{16}", encoded(one))


def test_the_place_of_a_staged_file_has_the_runs_number() -> None:
    part = Part.parse("dt=2026-11-22/owner=17/part-00003-5a1e-c000.c001.snappy.parquet")
    assert part == Part("2026-11-22", 17, "00003-001")
    path = part.final("messages", "queue", "a b", 12)
    assert path == "messages/dt=2026-11-22/queue=a%20b/run-000012-17-00003-001.parquet"
    assert Part.parse("dt=2026-11-22/owner=17/_SUCCESS") is None


def test_a_merged_file_lies_beside_what_it_replaces() -> None:
    path = compacted("messages/dt=2026-11-22/queue=orders", 13, 0)
    assert path == "messages/dt=2026-11-22/queue=orders/run-000013-merged-00000.parquet"
    assert day_of(path) == "2026-11-22"
