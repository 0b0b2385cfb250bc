"""The examples of README.md and of the guide to plain sockets, taken from them as they stand, do on a real bus what these pages say."""

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

from sbus.protocol import controls
from tests.support.daemons import Daemon
from tests.support.skips import require_program
from tests.support.wire import RawClient, message
from tools.stage import ROOT

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

README = ROOT / "README.md"
PLAIN_SOCKET = ROOT / "docs" / "guides" / "plain-socket.md"
SYSTEM_PATH = "/run/sbus.socket"

TIMEOUT_SECONDS = 120


SHARES_BUS = True


def _example(page: Path, language: str, containing: str) -> str:
    """Return the one example of a page in *language* that has the text *containing*."""
    (found,) = (code for name, code in _BLOCK.findall(page.read_text()) if name == language and containing in code)
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


def test_readme_names_the_commands_of_a_newcomer_and_fits_a_screen_or_two() -> None:
    text = README.read_text()
    named = set(re.findall(r"\bmake (\w+)", text))
    assert named >= {"build", "run", "check", "test", "deb"}
    assert named <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert "`.ci/run`" in text
    assert (ROOT / ".ci" / "run").is_file()
    assert len(text.splitlines()) <= 70


def test_the_speeds_of_readme_are_those_of_the_manual() -> None:
    page = (ROOT / "man" / "sbus-performance.7").read_text()
    rates, trips = (page.split(f".Ss {title}")[1].split(".Ss ")[0] for title in ("Deliveries, thousands per second", "Round trip at 1:1"))
    rows = re.findall(r"^ +\| (.*) \|$", README.read_text(), re.MULTILINE)
    shown = [[cell.strip() for cell in row.split("|")] for row in rows]
    daemons = [each.replace(", batches", "+batch") for each in shown[0][1:]]
    assert daemons == ["sbusd", "sbusd+batch", "Redis", "NATS", "dbus-broker", "Mosquitto"]
    columns = {"1 to 1, single messages": 0, "1 to 1, 64 in one system call": 1, "1 to 64, single messages": 4}
    assert len(shown) == 5
    for name, *cells in shown[1:]:
        table, column = (rates, columns[name]) if name in columns else (trips, 0)  # the last row
        measured = [re.findall(rf"^{re.escape(each)} +(.*)$", table, re.MULTILINE)[0].split()[column] for each in daemons]
        assert cells == measured, name


def test_every_manual_page_that_is_named_exists() -> None:
    pages = re.findall(r"\b(sbus[\w.-]*)\((\d)\)", README.read_text() + PLAIN_SOCKET.read_text())
    assert pages
    for name, section in pages:
        assert (ROOT / "man" / f"{name}.{section}").is_file(), f"{name}({section})"


def test_socat(bus: Daemon) -> None:
    require_program("socat", "socat")
    subscribe, publish = _example(PLAIN_SOCKET, "sh", "socat").replace(SYSTEM_PATH, bus.path).splitlines()
    client = bus.client()
    with _running(["sh", "-c", subscribe]) as output:
        _wait_for_recipients(client, b"chat/socat", 1)
        subprocess.run(["sh", "-c", publish], check=True, timeout=TIMEOUT_SECONDS)
        expected = message(b"chat/socat", b"hello from socat")
        assert _read(output, len(expected)) == expected


def test_c(bus: Daemon, tmp_path: Path) -> None:
    source, program = tmp_path / "client.c", tmp_path / "client"
    source.write_text(_example(PLAIN_SOCKET, "c", "main").replace(SYSTEM_PATH, bus.path))
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
    body = _example(PLAIN_SOCKET, "c", "main").partition("{\n")[2].rpartition("}")[0]
    assert len(body.splitlines()) <= 10


def test_python(bus: Daemon) -> None:
    env = {"SBUS_ADDRESS": bus.path, "PYTHONPATH": str(ROOT), "PATH": os.defpath}
    with _running([sys.executable, "-c", _example(README, "python", "Bus")], env) as output:
        expected = b"chat/python hello from Python\n"
        assert _read(output, len(expected)) == expected


def test_sbusctl(bus: Daemon) -> None:
    subscribe, publish = _example(README, "sh", "sbusctl").splitlines()
    program = f"{sys.executable} -m sbusctl.main"
    env = {"SBUS_ADDRESS": bus.path, "PYTHONPATH": str(ROOT), "PATH": os.defpath}
    with _running(["sh", "-c", subscribe.partition(" &")[0].replace("sbusctl", f"exec {program}")], env) as output:
        _wait_for_recipients(bus.client(), b"chat/shell", 1)
        command = ["sh", "-c", publish.replace("sbusctl", program)]
        subprocess.run(command, env=env, check=True, timeout=TIMEOUT_SECONDS, stdin=subprocess.DEVNULL)
        expected = b"chat/shell\thello from a shell\n"
        assert _read(output, len(expected)) == expected
