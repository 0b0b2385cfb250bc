"""Every function of ``clients/c/sbus.h`` that takes a duration, a size or a count works with its extreme values, or fails as documented."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.blob_programs import BlobProgram
from tests.support.c_programs import SOURCE, TIMEOUT_SECONDS, compile_program
from tests.support.daemons import Daemon
from tests.support.service_processes import running_service


def test_each_extreme_number_works_or_is_an_error(bus: Daemon, folder: Path, tmp_path: Path) -> None:
    program = compile_program([SOURCE / "numbers.c"], tmp_path / "numbers")
    env = {"SBUS_ADDRESS": bus.path, "PATH": os.defpath}
    with BlobProgram(folder, bus.path), running_service(bus.path, echo=lambda request: request.data):
        done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("checked\n", "", 0)
