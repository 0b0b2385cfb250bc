"""The store of a location: a directory needs no client of PyArrow, and a process has its own clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sbusd.archive.storage.local import LocalStore
from sbusd.archive.storage.store import store_of
from tools.stage import ROOT

pytestmark = pytest.mark.slow

_PROGRAM = """
import sys
from pathlib import Path
from sbusd.archive.record.index import list_index
assert list_index(Path(sys.argv[1])).names == ()
print(sorted(name for name in sys.modules if name.startswith("pyarrow")))
"""


def test_a_directory_is_read_without_pyarrow(tmp_path: Path) -> None:
    assert isinstance(store_of(tmp_path), LocalStore)
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
