"""sbus-rpc(7) says what the code does, in the sections that the code cites, and is clean."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

from sbusd.client.rpc import service
from sbusd.client.rpc.request_queue import WAITING_PER_USER
from sbusd.client.rpc.stream_call import STREAM_WINDOW
from sbusd.client.rpc.streaming import MAX_WINDOW, STREAMS_PER_USER
from sbusd.ctl.program_runner import MAX_ANSWER_BYTES
from sbusd.protocol.envelope import MAX_CONTEXT_BYTES, MAX_DESTINATIONS, NUMBER_LIMITS, SERVICE_HEAD, TEXT_LIMITS, Envelope
from tests.support import skips
from tools.stage import ROOT

PAGE = ROOT / "man" / "sbus-rpc.7"

SECTIONS = {
    1: "KEYS",
    2: "THE ENVELOPE",
    3: "A CALL",
    4: "VALID RESPONSES",
    5: "FAILURES",
    6: "CALLS TO A GROUP",
    7: "SERVICES",
    8: "STATISTICS",
    9: "REMOTE HOSTS",
}

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

_CITATION = re.compile(r"sbus-rpc\(7\) (§\d+(?:(?:, | and | to )§\d+)*)")


def _section(number: int) -> str:
    """Return one numbered section of the page, as it is written."""
    return PAGE.read_text("utf-8").split(f"\n.Sh {number}. {SECTIONS[number]}\n")[1].split("\n.Sh ")[0]


def test_the_sections_have_their_numbers() -> None:
    found = re.findall(r"^\.Sh (\d+)\. (.+)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert {int(number): title for number, title in found} == SECTIONS


def test_every_section_that_is_cited_exists() -> None:
    cited = [(path, run) for path in (ROOT / "sbusd").rglob("*.py") for run in _CITATION.findall(path.read_text("utf-8"))]
    assert len(cited) > 5
    assert [(path, run) for path, run in cited if not {int(each) for each in re.findall(r"\d+", run)} <= SECTIONS.keys()] == []


def test_the_members_of_the_envelope_and_their_bounds() -> None:
    rows = dict(re.findall(r"^\.It Li (\w+) Ta (.+?) Ta .+$", _section(2), re.MULTILINE))
    texts = {name: f"text, {limit} bytes" for name, limit in TEXT_LIMITS.items()}
    numbers = {name: f"0 to {limit}" for name, limit in NUMBER_LIMITS.items()}
    later = {"ctx": f"text, {MAX_CONTEXT_BYTES} bytes"}
    assert rows == texts | numbers | {"ver": "1", "dat": "base64", "dst": f"list, {MAX_DESTINATIONS}"} | later
    full = Envelope("a", "b", context=CONTEXT, cancel=1, part=1, more=1, window=1)
    assert list(rows) == re.findall(r'"(\w+)":', full.encode().decode())
    assert CONTEXT in _section(2)


def test_the_bounds_in_the_text() -> None:
    assert f"at most {TEXT_LIMITS['cmd']} bytes" in " ".join(_section(1).split())
    assert f"queues at most {WAITING_PER_USER} requests for each user" in " ".join(_section(7).split())
    assert f"remembers the last {service._REMEMBERED_UIDS} .Cm uid of each of {service._REMEMBERED_CONNECTIONS} connections" in " ".join(
        _section(7).split()
    )
    assert f"more than {MAX_WINDOW} parts beyond" in " ".join(_section(3).split())
    assert f"more than {MAX_WINDOW} parts beyond" in " ".join(_section(7).split())
    assert f"grants {STREAM_WINDOW} parts by default" in " ".join(_section(3).split())
    assert f"can have {STREAMS_PER_USER} open streams" in " ".join(_section(7).split())
    assert f"at most {MAX_ANSWER_BYTES} bytes" in (ROOT / "man" / "sbusctl.1").read_text("utf-8")
    assert SERVICE_HEAD.decode() in _section(1)


def test_the_counts_are_those_of_the_code() -> None:
    documented = set(re.findall(r"^\.It Cm (\w+)$", _section(8), re.MULTILINE))
    written = "".join(
        (ROOT / "sbusd" / "client" / name).read_text("utf-8") for name in ("rpc/service.py", "sync/server.py", "asyncio/server.py")
    )
    counted = set(re.findall(r'counts\["(\w+)"\]', written)) | set(re.findall(r'_drop\("(\w+)"', written))
    assert Path(service.__file__).name == "service.py"
    assert documented == counted


def test_the_examples_are_python() -> None:
    blocks = re.findall(r"^\.Bd -literal -offset indent\n(.*?)^\.Ed$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        ast.parse(block.replace("\\e", "\\"))


def test_the_page_is_clean() -> None:
    skips.require_program("mandoc", "mandoc")
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "style", str(PAGE)], capture_output=True, text=True, check=False)
    # Other pages need not be installed on this machine.
    assert [line for line in done.stdout.splitlines() if "referenced manual not found" not in line] == []
