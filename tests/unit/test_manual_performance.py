"""sbus-performance(7) describes what the bench measures, and is clean."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.bench.linked_hosts import BURSTS, SINGLES
from tests.bench.linked_hosts import FULL as LINK
from tests.bench.peers.contenders import IN_NODE, IN_PYTHON, NODE_WORK, OVER_C, PUMPS, in_node
from tests.bench.peers.run import FULL
from tests.support import skips
from tools.stage import ROOT

PAGE = ROOT / "man" / "sbus-performance.7"
SOURCE = PAGE.read_text("utf-8")
TEXT = " ".join(re.sub(r"^\.(?:Em|Ql|Dv|Xr) ", "", SOURCE, flags=re.MULTILINE).split())
FIGURES = SOURCE.partition("\n.Sh RESULTS\n")[2].partition("\n.Sh ")[0]


@pytest.mark.parametrize(
    "words",
    [
        f"publishes as fast as it can for {FULL.seconds:g} s, in {FULL.rounds} rounds",
        f"One program publishes as fast as its library can for {FULL.python_seconds:g} s, another receives, in {FULL.python_rounds} rounds",
        f"At most {PUMPS['1:1'].window} messages are in flight",
        f"({PUMPS['1:1x64'].window} where {PUMPS['1:1x64'].group} are sent together, {PUMPS['1KiB'].window} of 1 KiB, "
        f"{PUMPS['64KiB'].window} of 64 KiB)",
    ],
)
def test_the_documented_figures_are_those_of_the_bench(words: str) -> None:
    assert words in TEXT


def test_the_bench_between_hosts_is_described() -> None:
    between = " ".join(SOURCE.partition("\n.Sh BETWEEN HOSTS\n")[2].partition("\n.Sh ")[0].split())
    assert BURSTS.window == SINGLES.window
    assert f"At most {BURSTS.window} messages of {BURSTS.payload} bytes" in between
    assert f"bursts of {BURSTS.group}" in between
    assert f"in {LINK.rounds} rounds of {LINK.seconds:g} s" in between


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


def test_the_page_is_clean() -> None:
    skips.require_program("mandoc", "mandoc")
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "style", str(PAGE)], capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "referenced manual not found" not in line]
    assert said == []
