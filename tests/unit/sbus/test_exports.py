"""The package ``sbus``: its names, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sbus
from tools.stage import ROOT


def test_every_exported_name_is_there() -> None:
    assert sorted(sbus.__all__, key=str) == sorted(set(sbus.__all__))
    for name in sbus.__all__:
        assert getattr(sbus, name) is not None


@pytest.mark.slow
def test_the_client_is_imported_without_pydantic_and_asyncio() -> None:
    """A program that only publishes does not wait for modules that others need."""
    code = "import sys, sbus; sbus.Bus; print('pydantic' in sys.modules, 'asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
