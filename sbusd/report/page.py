"""The page: one HTML file without external resources, which runs its own scripts only."""

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
"""Content-Security-Policy. Scripts are allowed by checksum, so text from the bus cannot run even if it were parsed as markup."""


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
        # Compressed, because it is most of the page; the checksum is that of the uncompressed library. Without a timestamp, so that the
        # same data give the same page.
        "library": base64.b64encode(gzip.compress(library.encode(), mtime=0)).decode(),
        "charts": charts,
        "program": program,
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
    return resources.files("sbusd.report").joinpath(name).read_text("utf-8")


def _library() -> str:
    """Return the JavaScript of the chart library."""
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - an optional package
    except ImportError:
        raise ReportError(f"the chart library plotly is not installed. Install it with: {how_to_install('pipeline')}") from None
    library: str = get_plotlyjs()
    return library
