"""The package ``sbusd.client``: its names, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sbusd.client
from tools.stage import ROOT


def test_every_exported_name_is_there() -> None:
    assert sorted(sbusd.client.__all__, key=str) == sorted(set(sbusd.client.__all__))
    for name in sbusd.client.__all__:
        assert getattr(sbusd.client, name) is not None


@pytest.mark.slow
def test_the_client_is_imported_without_pydantic_and_asyncio() -> None:
    """A program that only publishes does not wait for modules that others need."""
    code = "import sys, sbusd.client; sbusd.client.Bus; print('pydantic' in sys.modules, 'asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
