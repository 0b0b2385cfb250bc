"""The message catalog, read as systemd reads it: an entry for each record of the bus."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tools.stage import ROOT

CATALOG = ROOT / "units" / "catalog" / "sbusd.catalog"


@dataclass(frozen=True, slots=True)
class Entry:
    """What the catalog says of one record."""

    id: str
    headers: dict[str, str]
    body: str


def entries(catalog: Path = CATALOG) -> list[Entry]:
    """Return the entries of a catalog, the bus's own, in order."""
    text = "".join(line for line in catalog.read_text("utf-8").splitlines(keepends=True) if not line.startswith("#"))
    made = []
    for part in re.split(r"^-- ", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n\n")
        first, *lines = head.splitlines()
        made.append(Entry(first, dict(line.split(": ", 1) for line in lines), body.strip()))
    return made
