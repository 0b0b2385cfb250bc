"""The table of links: the sender that it trusts is the unit that the packages install."""

from __future__ import annotations

from sbusd.pipeline.partials.link_rows import UNIT
from tools.stage import ROOT


def test_the_unit_of_the_link_is_installed() -> None:
    assert (ROOT / "units" / "system" / UNIT).exists()
