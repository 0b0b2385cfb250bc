"""How sbusctl starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


_PROGRAM = """
import atexit, gc, sys
atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 1_000))
from sbusctl.main import main
{before}
sys.argv = ["sbusctl", "--version"]
main()
"""

_INTERRUPT = """
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "sbusctl.application":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
"""


def _run(before: str = "") -> subprocess.CompletedProcess[str]:
    """Run sbusctl after *before*."""
    return subprocess.run([sys.executable, "-c", _PROGRAM.format(before=before)], capture_output=True, text=True, check=False)


def test_garbage_is_collected_once_everything_is_imported() -> None:
    done = _run()
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["True True"])


def test_ctrl_c_during_the_import_is_not_a_traceback() -> None:
    done = _run(_INTERRUPT)
    assert (done.returncode, done.stderr) == (130, "")
