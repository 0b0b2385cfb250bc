"""The tables of sbus-performance(7) have what the bench measures."""

from __future__ import annotations

from tests.bench.peers.contenders import IN_NODE, IN_PYTHON, NODE_WORK, OVER_C, PUMPS, in_node
from tests.support.manual import section

FIGURES = section("sbus-performance.7", "RESULTS")


def test_windows_differ_by_grouping_and_size_alone() -> None:
    assert {traffic.window for traffic in PUMPS.values() if traffic.payload == 64 and traffic.group == 1} == {128}
    assert {traffic.window for traffic in PUMPS.values() if traffic.group > 1} == {512}


def test_the_figures_have_every_row_and_every_contender() -> None:
    heads = [line.split() for line in FIGURES.splitlines() if line.strip().startswith("1:1 ")]
    assert heads == [list(PUMPS)] * 5
    firsts = [line.rstrip() for line in FIGURES.splitlines()]
    for contender in OVER_C:
        assert sum(line.startswith(f"{contender.name} ") for line in firsts) >= 4, contender.name
    for contender in IN_PYTHON:
        assert any(line.startswith(contender.name) for line in firsts), contender.name
    table = FIGURES.partition("\n.Ss Programs in Node\n")[2].partition("\n.Ss ")[0].splitlines()
    for contender in IN_NODE:
        works = [work for work in NODE_WORK.values() if contender in in_node(work)]
        assert sum(line.startswith(f"{contender.name} ") for line in table) == len(works), contender.name


def test_no_line_of_a_table_is_wider_than_a_terminal() -> None:
    assert FIGURES
    assert max(len(line) for line in FIGURES.splitlines() if not line.startswith(".")) <= 75
