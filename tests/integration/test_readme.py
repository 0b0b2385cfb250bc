"""The examples of README.md, taken from it as they stand, do what it says on a real bus."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from sbusd.protocol import controls
from tests.support.daemons import Daemon
from tests.support.skips import require_program
from tests.support.wire import RawClient, message
from tools.stage import ROOT

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SYSTEM_PATH = "/run/sbus.socket"

TIMEOUT_SECONDS = 120


SHARES_BUS = True


def _example(language: str, containing: str) -> str:
    """Return the one example in *language* that has the text *containing*."""
    (found,) = (code for name, code in _BLOCK.findall((ROOT / "README.md").read_text()) if name == language and containing in code)
    return str(found)


def _wait_for_recipients(client: RawClient, key: bytes, count: int) -> None:
    """Ask the bus until *count* connections would get a message with *key*."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if len(json.loads(client.ask(controls.TRACE, key))["recipients"]) == count:
            return
        time.sleep(0.01)  # leaves the processor to the program that is to subscribe
    pytest.fail(f"no client has subscribed to {key!r}")


def _read(pipe: IO[bytes], size: int) -> bytes:
    """Return *size* bytes of *pipe*, or fewer at its end."""
    data = b""
    while len(data) < size:
        ready, _, _ = select.select([pipe], [], [], TIMEOUT_SECONDS)
        assert ready, f"nothing more came after {data!r}"
        part = os.read(pipe.fileno(), size - len(data))
        if not part:
            break
        data += part
    return data


@contextmanager
def _running(command: list[str], env: dict[str, str] | None = None) -> Iterator[IO[bytes]]:
    """Run *command*, give its output, and kill it and what it started at the end."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            os.killpg(process.pid, 9)


def test_readme_starts_with_an_example_has_the_two_commands_and_fits_a_screen_or_two() -> None:
    text = (ROOT / "README.md").read_text()
    assert _BLOCK.findall(text)[0][1] == _example("sh", "sbusctl")
    assert re.findall(r"^make (\w+)", _example("sh", "make"), re.MULTILINE) == ["run", "test"]
    assert len(text.splitlines()) <= 90


def test_every_page_that_readme_names_exists() -> None:
    text = (ROOT / "README.md").read_text()
    pages = re.findall(r"\b(sbus[\w.-]*)\((\d)\)", text)
    assert pages
    for name, section in pages:
        assert (ROOT / "man" / f"{name}.{section}").is_file(), f"{name}({section})"


def test_socat(bus: Daemon) -> None:
    require_program("socat", "socat")
    subscribe, publish = _example("sh", "socat").replace(SYSTEM_PATH, bus.path).splitlines()
    client = bus.client()
    with _running(["sh", "-c", subscribe]) as output:
        _wait_for_recipients(client, b"chat/socat", 1)
        subprocess.run(["sh", "-c", publish], check=True, timeout=TIMEOUT_SECONDS)
        expected = message(b"chat/socat", b"hello from socat")
        assert _read(output, len(expected)) == expected


def test_c(bus: Daemon, tmp_path: Path) -> None:
    source, program = tmp_path / "client.c", tmp_path / "client"
    source.write_text(_example("c", "main").replace(SYSTEM_PATH, bus.path))
    gcc = shutil.which("gcc")
    assert gcc, "what built the bus is gone"
    subprocess.run([gcc, "-Wall", "-Wextra", "-Wno-unused-result", "-Werror", "-o", str(program), str(source)], check=True)
    with _running([str(program)]) as output:
        own = message(b"chat/c", b"hello from C")
        assert _read(output, len(own)) == own
        other = message(b"chat/test", b"hello from another")
        bus.client().send(other)
        assert _read(output, len(other)) == other


def test_c_program_is_ten_lines_in_its_body() -> None:
    body = _example("c", "main").partition("{\n")[2].rpartition("}")[0]
    assert len(body.splitlines()) <= 10


def test_python(bus: Daemon) -> None:
    env = {"SBUS_ADDRESS": bus.path, "PYTHONPATH": str(ROOT), "PATH": os.defpath}
    with _running([sys.executable, "-c", _example("python", "Bus")], env) as output:
        expected = b"chat/python hello from Python\n"
        assert _read(output, len(expected)) == expected


def test_sbusctl(bus: Daemon) -> None:
    subscribe, publish = _example("sh", "sbusctl").splitlines()
    program = f"{sys.executable} -m sbusd.ctl.main"
    env = {"SBUS_ADDRESS": bus.path, "PYTHONPATH": str(ROOT), "PATH": os.defpath}
    with _running(["sh", "-c", subscribe.removesuffix(" &").replace("sbusctl", f"exec {program}")], env) as output:
        _wait_for_recipients(bus.client(), b"chat/shell", 1)
        command = ["sh", "-c", publish.replace("sbusctl", program)]
        subprocess.run(command, env=env, check=True, timeout=TIMEOUT_SECONDS, stdin=subprocess.DEVNULL)
        expected = b"chat/shell\thello from a shell\n"
        assert _read(output, len(expected)) == expected
