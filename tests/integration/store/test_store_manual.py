"""The examples of sbus-store(8) do what the page says, on a real bus with a real store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.integration.store.conftest import MakeCaller
from tests.support.daemons import Daemon
from tests.support.relays import wait_for
from tests.support.skips import require_program
from tests.support.store_programs import ENV, StoreCaller
from tools.stage import ROOT

PAGE = (ROOT / "man/sbus-store.8").read_text()
BLOCK = re.compile(r"^\.Bd -literal -offset indent\n(.*?)^\.Ed$", re.MULTILINE | re.DOTALL)


def block_with(words: str) -> str:
    """Return the literal block of the page that has *words*, as it is printed."""
    (found,) = [each for each in BLOCK.findall(PAGE) if words in each]
    return str(found).replace("\\e", "\\").replace("\\&", "").replace("\\-", "-")


def test_the_worker_in_shell(alice: StoreCaller, bus: Daemon, tmp_path: Path) -> None:
    require_program("socat", "socat")
    script = tmp_path / "worker"
    script.write_text(block_with("#!/bin/sh"))
    script.chmod(0o755)
    letters = tmp_path / "letters"
    env = {**os.environ, "LETTERS": str(letters)}
    with subprocess.Popen(["socat", "-b", "524288", f"UNIX-CONNECT:{bus.path},type=5", f"EXEC:{script}"], env=env) as worker:
        try:
            alice.put("mail/a", b"Hello", b"How are you?", b"Goodbye")
            wait_for(lambda: letters.exists() and letters.read_text() == "Hello\nHow are you?\nGoodbye\n", "the letters")
            wait_for(lambda: alice.call("status")["counters"]["acked"] == 3, "the acknowledgements")
        finally:
            worker.terminate()


def test_the_python_worker_and_publisher(caller: MakeCaller, alice: StoreCaller, bus: Daemon) -> None:
    source = block_with("from sbus import Bus")
    ran = subprocess.run(
        [sys.executable, "-c", source.replace("deliver(", "print(")],
        env=ENV | {"SBUS_ADDRESS": bus.path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "b'Hello'\n"


def test_the_commands(alice: StoreCaller, bus: Daemon) -> None:
    text = block_with("sbusctl store put").replace("sbusctl", f"{sys.executable} -m sbusctl.main")
    commands = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    assert len(commands) >= 5
    for command in commands:
        ran = subprocess.run(
            ["sh", "-c", command], env=ENV | {"SBUS_ADDRESS": bus.path}, capture_output=True, text=True, timeout=120, check=False
        )
        assert ran.returncode == 0, (command, ran.stderr)
