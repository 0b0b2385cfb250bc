"""Each use of the wall clock is in the table of docs/clocks.md, with its reason: a duration by it is wrong when the clock is set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_house import committed_files
from tools.stage import HOUSES, ROOT

_USE = re.compile(
    r"\btime\.time(?:_ns)?\b|\bfrom time import [^\n]*\btime\b|\bdatetime\.now\b|\butcnow\b|\bCLOCK_REALTIME\b|\b(?:gm|local)time\(\)"
    r"|\bdate\.today\b|\bDate\.now\b|\bnew Date\(\)|\btime\(NULL\)|\bgettimeofday\b|redis\.call\('TIME'\)"
)
_SOURCES = {".py", ".pyx", ".pxi", ".pxd", ".js", ".mjs", ".ts", ".h", ".lua", ".html"}
_ROW = re.compile(r"^\| `([^`]+)` \| (\d+) \| .+ \| .+ \|$", re.MULTILINE)


def _uses(path: Path) -> int:
    """Return the number of uses in a file."""
    return len(_USE.findall(path.read_text()))


def test_each_use_of_the_wall_clock_has_a_reason() -> None:
    paths = [(path, path.relative_to(ROOT)) for path in committed_files() if path.suffix in _SOURCES]
    shipped = [(path, name) for path, name in paths if name.parts[0] in {*HOUSES, "clients", "pyspark_sbus"} and "test" not in name.parts]
    found = {str(name): count for path, name in shipped if (count := _uses(path))}
    listed = {name: int(count) for name, count in _ROW.findall((ROOT / "docs" / "clocks.md").read_text())}
    assert found == listed, "describe the use in docs/clocks.md, or use the monotonic clock"


@pytest.mark.parametrize(
    "line",
    [
        "x = time.time()",
        "clock=time.time_ns,",
        "from time import monotonic, time",
        "datetime.now(UTC)",
        "clock_gettime(CLOCK_REALTIME, &now);",
        "Date.now()",
        "time(NULL)",
    ],
)
def test_a_use_is_found(line: str) -> None:
    assert _USE.search(line)


@pytest.mark.parametrize("line", ["time.monotonic()", "loop.time()", "CLOCK_BOOTTIME", "new Date(sent)", "from time import sleep"])
def test_other_clocks_are_not(line: str) -> None:
    assert not _USE.search(line)
