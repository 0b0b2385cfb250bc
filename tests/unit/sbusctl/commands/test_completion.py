"""The scripts that ``sbusctl completion`` prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sbusctl import completion
from tests.support import skips

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("shell", "name"), [("bash", "sbusctl"), ("zsh", "_sbusctl"), ("fish", "sbusctl.fish")])
def test_the_script_is_printed_and_the_shell_can_read_it(shell: str, name: str) -> None:
    command = [sys.executable, "-m", "sbusctl.main", "completion", shell]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    path = Path(str(completion.__file__)).with_name(name)
    assert done.stdout == path.read_text()
    skips.require_program(shell, shell)
    subprocess.run([shell, "-n", path], check=True)
