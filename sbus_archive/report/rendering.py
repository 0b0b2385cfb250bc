"""Renders a digest: the page, one HTML file without external resources that runs its own scripts only; and three lines for a terminal."""

from __future__ import annotations

import base64
import datetime
import gzip
import hashlib
import json
from importlib import resources
from typing import Any

from sbus.protocol.errors import SbusError
from sbus_archive.optional_packages import how_to_install
from sbus_archive.report.digest import Digest
from sbus_archive.report.hosts import failed_calls

_POLICY = "default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
"""Content-Security-Policy. Scripts are allowed by checksum, so text from the bus cannot run even if it were parsed as markup."""

_PROGRAMS = ("text.js", "charts.js", "tables.js", "flows.js", "tiles.js", "page.js")
"""The scripts of the page, in the order in which they run."""


class ReportError(SbusError):
    """The report cannot be written; the text is one line that says what to do."""


def page_of(data: dict[str, Any]) -> str:
    """Return the page that shows *data*, a digest.

    Raises:
        ReportError: the chart library is not installed.
    """
    library, programs = _library(), [_part(name) for name in _PROGRAMS]
    digests = (hashlib.sha256(script.encode()).digest() for script in (library, *programs))
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    parts = {
        "policy": _POLICY.format(hashes=hashes),
        "style": _part("page.css"),
        "data": json_for_page(data),
        # Compressed, because it is most of the page; the checksum is that of the uncompressed library. Without a timestamp, so that the
        # same data give the same page.
        "library": base64.b64encode(gzip.compress(library.encode(), mtime=0)).decode(),
        "programs": "\n".join(f"<script>{program}</script>" for program in programs),
    }
    pieces = _part("page.html").split("@")
    # Every second piece is the name of a part. The parts themselves are not searched.
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def json_for_page(data: dict[str, Any]) -> str:
    """Return *data* as JSON in which HTML has no special characters."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _part(name: str) -> str:
    """Return one file of the page."""
    return resources.files("sbus_archive.report").joinpath(name).read_text("utf-8")


def require_plotly() -> None:
    """Raise ReportError if the chart library is not installed."""
    try:
        import plotly.offline  # noqa: F401, PLC0415 - an optional package
    except ImportError:
        raise ReportError(f"the chart library plotly is not installed. Install it with: {how_to_install('pipeline')}") from None


def _library() -> str:
    """Return the JavaScript of the chart library. Raises ReportError."""
    require_plotly()
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - behind the check

    library: str = get_plotlyjs()
    return library


def summary_of(digest: Digest) -> list[str]:
    """Return three lines: coverage, traffic, problems."""
    data = digest.data
    return [_covered(digest), _sent(data), _wrong(digest)]


def _covered(digest: Digest) -> str:
    """Return the period and the hosts."""
    period = digest.covers.period
    if period is None:
        return "no rows in this period"
    hosts = sorted(digest.covers.hosts)
    named = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
    return f"{_utc(period[0])} to {_utc(period[1])} UTC on {named}: {_many(digest.covers.records, 'row')}"


def _sent(data: dict[str, Any]) -> str:
    """Return the traffic, with the busiest user and key."""
    traffic = data["traffic"]
    messages = sum(traffic["messages"])
    if not messages:
        return "no messages"
    key, user = (_busiest(traffic, column, data[names]) for column, names in (("key", "keys"), ("user", "users")))
    size, recipients = sum(traffic["bytes"]), sum(traffic["recipients"])
    return (
        f"{_many(messages, 'message')} of {_many(size, 'byte')} to {_many(recipients, 'recipient')}; busiest key {key}, busiest user {user}"
    )


def _busiest(traffic: dict[str, list[int]], column: str, names: tuple[str, ...]) -> str:
    """Return the name with the most messages."""
    sums: dict[int, int] = {}
    for number, messages in zip(traffic[column], traffic["messages"], strict=True):
        sums[number] = sums.get(number, 0) + messages
    return names[max(sums, key=lambda number: sums[number])]


def _wrong(digest: Digest) -> str:
    """Return failed calls, losses, refusals and missing rows."""
    data = digest.data
    calls, losses = data["calls"], data["losses"]
    failed = failed_calls(calls["cmd"], calls["errors"], calls["timeouts"], calls["unanswered"])
    lost = sum(count for count, cause in zip(losses["count"], losses["cause"], strict=True) if cause == "lost")
    whole = "nothing is known to be missing" if digest.covers.is_whole else f"parts of the record are missing{_silent(digest)}"
    called, refused = _many(sum(calls["calls"]), "call"), _many(sum(data["security"]["events"]), "refusal")
    return f"{called}, {failed:,} failed; {_many(lost, 'message')} lost, {refused}; {whole}"


def _silent(digest: Digest) -> str:
    """Return the hosts that stopped recording, as a suffix; empty if there are none."""
    hosts = [f"{name} for {_many(hours, 'hour')}" for name, hours in sorted(digest.covers.silent.items())]
    more = f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""
    return f"; no rows of {', '.join(hosts[:3])}{more}" if hosts else ""


def _many(count: int, what: str) -> str:
    """Return *count* with the noun *what* in the right form."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _utc(nanoseconds: int) -> str:
    """Return a time for people."""
    return datetime.datetime.fromtimestamp(nanoseconds // 10**9, datetime.UTC).strftime("%Y-%m-%d %H:%M")
