"""A network as a picture."""

from __future__ import annotations

from math import hypot

import pytest

from hydra.picture import HEIGHT, MAX_STATIONS, WIDTH, Station, draw


def stations(count: int) -> list[Station]:
    return [Station(n, f"node {n}", "", n == 0, n == 0) for n in range(count)]


def edge(one: int, other: int) -> frozenset[int]:
    return frozenset((one, other))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, MAX_STATIONS])
def test_all_nodes_are_in_the_picture_and_apart(count: int) -> None:
    dots = draw(stations(count), [], []).dots
    assert len(dots) == count
    for dot in dots:
        assert 20 < dot.x < WIDTH - 20
        assert 20 < dot.y < HEIGHT - 20
        assert 0 < dot.label_y < HEIGHT
    apart = [hypot(a.x - b.x, a.y - b.y) for n, a in enumerate(dots) for b in dots[:n]]
    assert min(apart, default=99.0) > 30


def test_the_first_node_is_on_top() -> None:
    first, *others = draw(stations(5), [], []).dots
    assert all(first.y < other.y for other in others)


def test_lines_go_from_node_to_node_and_ways_only_where_no_link_is_known() -> None:
    picture = draw(stations(3), [edge(0, 1), edge(1, 2)], [edge(1, 2), edge(0, 2)])
    dots = picture.dots
    drawn = {((line.x1, line.y1), (line.x2, line.y2)): line.direct for line in picture.lines}
    place = [(dot.x, dot.y) for dot in dots]
    assert drawn == {(place[0], place[1]): True, (place[1], place[2]): True, (place[0], place[2]): False}


def test_links_without_a_neighbour_are_not_drawn() -> None:
    assert draw(stations(2), [edge(0, 9), edge(1, 1)], [edge(8, 9)]).lines == []


def test_nodes_that_there_is_no_room_for_are_counted() -> None:
    picture = draw(stations(MAX_STATIONS + 5), [edge(0, MAX_STATIONS)], [])
    assert (len(picture.dots), picture.left_out, picture.lines) == (MAX_STATIONS, 5, [])


def test_long_names_are_cut() -> None:
    [dot] = draw([Station(1, "x" * 100, "", False, True)], [], []).dots
    assert dot.label == "x" * 23 + "…"
