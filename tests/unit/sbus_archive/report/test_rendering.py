"""The page, and the lines for a terminal."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html.parser
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

from sbus_archive.record.layout import HOUR_NS
from sbus_archive.report.digest import digest_of
from sbus_archive.report.rendering import ReportError, json_for_page, page_of, summary_of
from sbus_archive.tables.publication import TableWriter
from sbus_archive.tables.storage import read_tables
from tests.support.published_tables import publish_record
from tests.support.records import NOON, message

HOSTILE = ["</script><script>alert(1)</script>", "<!--", "@data@", "]]>", "&lt;", "\u2028", "'\"`${}", "\ud800"]


class Scripts(html.parser.HTMLParser):
    """The scripts of a page as a browser cuts them, and whatever names another file."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self.links: list[str | None] = []
        self._attributes: dict[str, str | None] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.links += [value for name, value in attrs if name in {"src", "href", "action"}]
        self._attributes = attributes if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._attributes is not None:
            self.found.append((self._attributes, data))

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._attributes = None


def test_hostile_text_stays_data() -> None:
    data: dict[str, Any] = {"keys": HOSTILE, "</script>": HOSTILE}
    scripts = Scripts(page_of(data)).found
    assert [attributes for attributes, _ in scripts] == [
        {"id": "data", "type": "application/json"},
        {"id": "library", "type": "text/plain"},
        *[{}] * 6,
    ]
    assert json.loads(scripts[0][1]) == data


def test_json_has_no_character_of_markup() -> None:
    text = json_for_page({"a": HOSTILE})
    assert not set("<>&") & set(text)
    assert text.isascii()
    assert json.loads(text) == {"a": HOSTILE}


def test_only_its_own_programs_run() -> None:
    page = page_of({})
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0]
    scripts = Scripts(page).found
    packed = next(text for attributes, text in scripts if attributes.get("id") == "library")
    programs = [gzip.decompress(base64.b64decode(packed)), *(text.encode() for attributes, text in scripts if not attributes)]
    hashes = {base64.b64encode(hashlib.sha256(program).digest()).decode() for program in programs}
    assert set(re.findall(r"'sha256-([^']*)'", policy)) == hashes
    assert len(hashes) == 7
    assert programs[0].decode() == get_plotlyjs()
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src" not in policy  # so that of default-src holds


def test_the_same_data_make_the_same_page() -> None:
    assert page_of({"made": 1}) == page_of({"made": 1})


def test_nothing_is_asked_of_a_network() -> None:
    links = Scripts(page_of({})).links
    assert links
    assert all(link is not None and re.fullmatch("#[a-z-]+", link) for link in links)


def test_a_missing_chart_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ReportError, match=r"the chart library plotly is not installed\. Install it with: pip install 'sbusd\[pipeline\]'"):
        page_of({})


def test_the_summary_has_three_lines(tmp_path: Path) -> None:
    request = message(3, "rpc/echo")._replace(call_role="request", call_id=1, call_cmd="echo")
    loss, denial = (message(number)._replace(kind=kind, lost=7) for number, kind in ((4, "loss"), (5, "denial")))
    rows = [message(1, "a/b/c"), message(2, "a/b"), request, loss, denial]
    root = publish_record(tmp_path, {"alpha": rows})
    assert summary_of(digest_of(read_tables(root), lambda _: None, 1)) == [
        "2026-11-20 12:00 to 2026-11-20 12:00 UTC on alpha: 5 rows",
        "3 messages of 3 bytes to 6 recipients; busiest key a/b, busiest user uid 1000",
        "1 call, 1 failed; 7 messages lost, 7 refusals; nothing is known to be missing",
    ]


def test_the_call_that_closed_the_record_has_not_failed(tmp_path: Path) -> None:
    request = message(3, "rpc/recorder/close")._replace(call_role="request", call_id=1, call_cmd="recorder/close")
    root = publish_record(tmp_path, {"alpha": [message(1, "a"), request]})
    assert summary_of(digest_of(read_tables(root), lambda _: None, 1))[2].startswith("1 call, 0 failed;")


def test_missing_hours_are_reported(tmp_path: Path) -> None:
    root = publish_record(tmp_path, {host: [message(1)] for host in "abcd"}, absent=("x",))
    lines = summary_of(digest_of(read_tables(root), lambda _: None, 1))
    assert lines[0].endswith("on a, b, c and 1 more: 4 rows")
    assert lines[2].endswith("parts of the record are missing")


def test_stopped_hosts_are_reported(tmp_path: Path) -> None:
    """Of four hosts three have no row in the last five hours."""
    late = message(9, ts=NOON + 5 * HOUR_NS + 1)
    root = publish_record(
        tmp_path, {"a": [message(1), *(late._replace(seq=9 + n, ts=NOON + n * HOUR_NS) for n in range(1, 6))], "b": [message(1)]}
    )
    lines = summary_of(digest_of(read_tables(root), lambda _: None, 1))
    assert lines[2].endswith("parts of the record are missing; no rows of b for 4 hours")


def test_a_missing_record_is_reported(tmp_path: Path) -> None:
    TableWriter(tmp_path)
    lines = summary_of(digest_of(read_tables(tmp_path), lambda _: None, 1))
    assert lines[:2] == ["no rows in this period", "no messages"]
