"""The page: one HTML file with everything in it, which lets nothing but its own programs run, and asks no network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from importlib import resources
from typing import Any

from sbusd.archive.optional_packages import how_to_install
from sbusd.protocol.errors import SbusError

_POLICY = "default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
"""Content-Security-Policy: scripts by their checksums, so that text from the bus could not become one even if it were taken for markup."""


class ReportError(SbusError):
    """The report cannot be written; the text is one line that says what to do."""


def page_of(data: dict[str, Any]) -> str:
    """Return the page that shows *data*, a digest.

    Raises:
        ReportError: the chart library is not installed.
    """
    library, charts, program = _library(), _part("charts.js"), _part("page.js")
    digests = (hashlib.sha256(script.encode()).digest() for script in (library, charts, program))
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    parts = {
        "policy": _POLICY.format(hashes=hashes),
        "style": _part("page.css"),
        "data": json_for_page(data),
        # Packed, for it is most of the page; its checksum is that of what the browser unpacks. Without a time in it, for the same
        # data shall make the same page.
        "library": base64.b64encode(gzip.compress(library.encode(), mtime=0)).decode(),
        "charts": charts,
        "program": program,
    }
    pieces = _part("page.html").split("@")
    # Every second piece is a part's name: no part is searched for names, whatever stands in it.
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def json_for_page(data: dict[str, Any]) -> str:
    """Return *data* as JSON that nothing in HTML takes for the end of a script, or for anything else of its own."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _part(name: str) -> str:
    """Return one of the files that the page is made of."""
    return resources.files("sbusd.report").joinpath(name).read_text("utf-8")


def _library() -> str:
    """Return the chart library's program."""
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - an optional package
    except ImportError:
        raise ReportError(f"the chart library plotly is not installed. Install it with: {how_to_install('pipeline')}") from None
    library: str = get_plotlyjs()
    return library
