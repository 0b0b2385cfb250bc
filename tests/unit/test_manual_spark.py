"""sbus-spark(7) says what the code does, and is clean."""

from __future__ import annotations

import re
import subprocess

import pytest

from sbusd.pipeline.source.archive_offset import DAYS_BY_NAME
from sbusd.pipeline.source.live_stream import LIVE_ROWS, MOST_BYTES, MOST_ROWS
from sbusd.pipeline.source.options import _NAMES, CHUNK_ROWS, Options
from sbusd.pipeline.source.publisher import MOST_TASK_BYTES
from tests.support import skips
from tools.stage import ROOT

PAGE = ROOT / "man" / "sbus-spark.7"
TEXT = " ".join(re.sub(r"^\.(?:Cm|Li|Ql|Va|Em|Fn|Xr) ", "", PAGE.read_text("utf-8"), flags=re.MULTILINE).split())


def test_every_option_is_described() -> None:
    options = PAGE.read_text("utf-8").split(".Sh OPTIONS\n")[1].split(".Sh ")[0]
    tags = re.findall(r"^\.It (Cm .*)$", options, re.MULTILINE)
    assert {name for tag in tags for name in re.findall(r"Cm (\w+)", tag)} == set(_NAMES.values())


@pytest.mark.parametrize(
    "words",
    [
        f"keeps {MOST_ROWS} rows or {MOST_BYTES >> 20} MiB of payloads",
        f"for the live bus {LIVE_ROWS}.",
        f"between two stores of the progress. The default is {CHUNK_ROWS}.",
        f"The rows of one task can have at most {MOST_TASK_BYTES >> 20} MiB.",
        f"names of segments for the {['zero', 'one', 'two'][DAYS_BY_NAME]} newest days of each host",
        f"messages in doubt. The default is {Options().in_doubt} ; the other value is skip .",
    ],
)
def test_defaults_are_those_of_the_code(words: str) -> None:
    assert words in TEXT


def test_the_page_is_clean() -> None:
    skips.require_program("mandoc", "mandoc")
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "style", str(PAGE)], capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "referenced manual not found" not in line]
    assert said == []
