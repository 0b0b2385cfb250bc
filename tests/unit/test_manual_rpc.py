"""sbus-rpc(7) has the members of the envelope and the counts of the code, and its examples are Python."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from sbus.protocol.envelope import MAX_CONTEXT_BYTES, MAX_DESTINATIONS, NUMBER_LIMITS, TEXT_LIMITS, Envelope
from sbus.rpc import service
from tests.support.manual import examples, section
from tools.stage import ROOT

PAGE = "sbus-rpc.7"

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_the_members_of_the_envelope_and_their_bounds() -> None:
    rows = dict(re.findall(r"^\.It Li (\w+) Ta (.+?) Ta .+$", section(PAGE, "2"), re.MULTILINE))
    texts = {name: f"text, {limit} bytes" for name, limit in TEXT_LIMITS.items()}
    numbers = {name: f"0 to {limit}" for name, limit in NUMBER_LIMITS.items()}
    later = {"ctx": f"text, {MAX_CONTEXT_BYTES} bytes"}
    assert rows == texts | numbers | {"ver": "1", "dat": "base64", "dst": f"list, {MAX_DESTINATIONS}"} | later
    full = Envelope("a", "b", context=CONTEXT, cancel=1, part=1, more=1, window=1)
    assert list(rows) == re.findall(r'"(\w+)":', full.encode().decode())
    assert CONTEXT in section(PAGE, "2")


def test_the_counts_are_those_of_the_code() -> None:
    documented = set(re.findall(r"^\.It Cm (\w+)$", section(PAGE, "8"), re.MULTILINE))
    written = "".join((ROOT / "sbus" / name).read_text("utf-8") for name in ("rpc/service.py", "sync/server.py", "asyncio/server.py"))
    counted = set(re.findall(r'counts\["(\w+)"\]', written)) | set(re.findall(r'_drop\("(\w+)"', written))
    assert Path(service.__file__).name == "service.py"
    assert documented == counted


def test_the_examples_are_python() -> None:
    assert len(examples(PAGE)) == 6
    for lines in examples(PAGE):
        ast.parse("\n".join(lines))
