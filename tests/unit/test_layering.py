"""Imports point downwards only, and the daemon starts without what it does not need."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import layer_diagram
from tests.support.skips import require
from tools.imports import PACKAGE, imports_of_tree, module_of, part_of
from tools.stage import ROOT

_CLIENTS_USE = {"protocol", "client", "config"}

MAY_IMPORT = {
    "": set(),
    "protocol": set(),
    "exhaustion": set(),
    "descriptor_limit": set(),
    "standard_error": {"protocol"},
    "standard_output": {"standard_error"},
    "helptext": {"exhaustion", "standard_error", "standard_output"},
    "http_connection": {"protocol"},
    "socket_owner": set(),
    "wall_clock": set(),
    "backoff": set(),
    "owner_threads": set(),
    "passed_descriptors": set(),
    "systemd": {"exhaustion", "protocol"},
    "config": {"protocol"},
    "program": {"protocol", "config", "systemd", "exhaustion", "standard_error", "standard_output"},
    "running_service": {"protocol", "config", "systemd", "exhaustion"},
    "dataplane": {"protocol", "config", "owner_threads"},
    "state": {"protocol", "dataplane"},
    "broker": {"descriptor_limit", "protocol", "config", "systemd", "dataplane", "state"},
    "restart": {"protocol", "systemd", "dataplane", "state", "broker"},
    "daemon": {"exhaustion", "descriptor_limit", "protocol", "config", "systemd", "dataplane", "broker", "restart"}
    | {"standard_error", "standard_output"},
    "client": {"protocol"},
    "archive": {"protocol"},
    "feeds": _CLIENTS_USE | {"systemd", "helptext", "program", "standard_error"},
    "relay": _CLIENTS_USE | {"systemd", "helptext", "program", "running_service", "standard_error", "socket_owner", "http_connection"},
    "link": _CLIENTS_USE | {"systemd", "helptext", "program", "running_service", "backoff"},
    "blob": _CLIENTS_USE
    | {"descriptor_limit", "exhaustion", "systemd", "helptext", "program", "running_service", "standard_error"}
    | {"owner_threads", "passed_descriptors"},
    "web": _CLIENTS_USE
    | {"systemd", "helptext", "program", "running_service", "standard_error", "standard_output", "socket_owner", "http_connection"},
    "store": _CLIENTS_USE | {"systemd", "helptext", "program", "running_service", "wall_clock", "backoff"},
    "trigger": _CLIENTS_USE | {"systemd", "helptext", "program", "running_service", "backoff"},
    "metrics": _CLIENTS_USE
    | {"systemd", "helptext", "program", "running_service", "standard_error", "socket_owner", "http_connection"}
    | {"owner_threads", "passed_descriptors", "descriptor_limit", "backoff"},
    "recorder": _CLIENTS_USE | {"systemd", "helptext", "program", "standard_error", "archive", "wall_clock"},
    "shipping": {"protocol", "config", "systemd", "helptext", "program", "standard_error", "standard_output", "archive", "wall_clock"},
    "pipeline": _CLIENTS_USE | {"helptext", "program", "systemd", "archive", "standard_error", "standard_output"},
    "report": {"protocol", "archive"},
    "ctl": _CLIENTS_USE
    | {"systemd", "helptext", "standard_error", "standard_output", "archive", "recorder", "relay", "link", "report", "metrics"},
}
"""For each part of the project, the others that it may import; ``""`` is the package's own __init__.py."""

ARCHITECTURE = ROOT / "docs" / "architecture.md"

NOT_AT_START = {"typer", "rich", "pyroute2", "asyncio"}
"""What the daemon's start must not import, so that it is ready within 150 ms."""


def _violations(root: Path) -> list[str]:
    """Return a line for each import under *root* that does not point downwards."""
    parts = {path.stem for path in (root / PACKAGE).iterdir() if path.is_dir() or path.suffix == ".py"} - {"__init__", "__pycache__"}
    wrong = [f"{PACKAGE}/{part}: is in no layer; add it to MAY_IMPORT" for part in sorted(parts - MAY_IMPORT.keys())]
    for each in imports_of_tree(root):
        origin, target = part_of(module_of(each.path)), part_of(each.target)
        if target in parts and target != origin and target not in MAY_IMPORT.get(origin, set()):
            wrong.append(f"{each}: {origin or PACKAGE} may not import {target}")
    return wrong


def test_imports_point_downwards() -> None:
    assert not _violations(ROOT)


def test_each_permission_is_used() -> None:
    used = {(part_of(module_of(each.path)), part_of(each.target)) for each in imports_of_tree(ROOT)}
    assert [(part, other) for part, others in MAY_IMPORT.items() for other in sorted(others) if (part, other) not in used] == []


def test_the_architecture_shows_the_layers() -> None:
    text = ARCHITECTURE.read_text()
    assert text == layer_diagram.with_picture(text, MAY_IMPORT), "docs/architecture.md is not up to date; run: make docs"


def test_a_changed_rule_changes_the_picture() -> None:
    rules: layer_diagram.Rules = {"": set(), "wire": set(), "daemon": {"wire"}, "client": {"wire"}, "tool": {"client", "wire"}}
    text = layer_diagram.with_picture("Layers:\n<!-- layers: begin --><!-- layers: end -->\n", rules)
    assert text.startswith("Layers:\n<!-- layers: begin -->\n\n```\nlayer | the daemon | programs and clients | used by both\n")
    assert "\n2     |            | tool                 |\n1     | daemon     | client               |\n0     |   " in text
    assert "\ntool   | client  wire\n" in text
    assert layer_diagram.with_picture(text, rules) == text
    assert layer_diagram.with_picture(text, {**rules, "tool": {"wire"}}) != text


def test_a_picture_of_many_parts_is_not_wide() -> None:
    many = {f"part_{number:02}": {"wire"} for number in range(40)}
    picture = layer_diagram.draw({"": set(), "wire": set(), "daemon": {"wire"}, **many, "tool": set(many)})
    assert max(map(len, picture.splitlines())) <= 120
    assert all(picture.count(f"{name}  ") + picture.count(f"{name}\n") + picture.count(f"{name} |") >= 2 for name in many)


def test_a_text_without_a_place_for_the_picture_is_an_error() -> None:
    with pytest.raises(ValueError, match="must have one <!-- layers: begin -->"):
        layer_diagram.with_picture("No markers.\n", MAY_IMPORT)


def _questions(text: str) -> list[tuple[str, str]]:
    """Return the rows of the tables of questions, each as question and file."""
    return [(question, file) for question, file in re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE) if file != "File"]


def test_the_architecture_says_where_to_begin_in_each_part() -> None:
    named = {file.strip("`").split("/")[1] for _, file in _questions(ARCHITECTURE.read_text()) if file.startswith("`sbusd/")}
    packages = {part for part in MAY_IMPORT if part and (ROOT / PACKAGE / part).is_dir()}
    assert packages - named == set()


def test_each_question_about_the_architecture_has_one_file() -> None:
    questions = _questions(ARCHITECTURE.read_text())
    assert len(questions) > 40
    assert [row for row in questions if not re.fullmatch(r"`[\w./-]+`", row[1]) or not (ROOT / row[1].strip("`")).is_file()] == []


def test_the_tree_is_read() -> None:
    """An empty list of violations would prove nothing if no import were found."""
    found = {(module_of(each.path), each.target) for each in imports_of_tree(ROOT)}
    assert ("sbusd.broker.access", "sbus.protocol.keys.KeySpace") in found
    assert any(origin == "sbusd.dataplane.switch" and target.startswith("sbusd.dataplane.") for origin, target in found)


@pytest.mark.parametrize(
    ("path", "source", "says"),
    [
        ("protocol/keys.py", "from sbus import bus", "protocol may not import client"),
        ("protocol/keys.py", "def f():\n    import sbus_programs.config", "protocol may not import config"),
        ("protocol/keys.py", "from .. import daemon", "protocol may not import daemon"),
        ("protocol/keys.py", "from ..config import Settings", "protocol may not import config"),
        ("client/bus.py", "from sbusd import config", "client may not import config"),
        ("client/bus.py", "import importlib\nimportlib.import_module('sbusd.daemon.main')", "client may not import daemon"),
        ("ctl/main.py", "import sbusd.dataplane.contract as c", "ctl may not import dataplane"),
        ("ctl/main.py", "import os, sbus_services.feeds", "ctl may not import feeds"),
        ("feeds/main.py", "if TYPE_CHECKING:\n    from sbusctl.main import app", "feeds may not import ctl"),
        ("dataplane/switch.pyx", "from sbus.bus cimport (\n    A,\n    B,\n)", "dataplane may not import client"),
        ("dataplane/switch.pxd", "cimport sbusctl.main", "dataplane may not import ctl"),
        ("dataplane/switch.pyx", "cdef f():\n    from ..feeds import main", "dataplane may not import feeds"),
        ("archive/index.py", "from sbus import Bus", "archive may not import client"),
        ("pipeline/main.py", "from sbus_archive.recorder import main", "pipeline may not import recorder"),
        ("dataplane/switch.pyi", "from sbus import bus", "dataplane may not import client"),
        ("__init__.py", "from sbus import Bus", "sbusd may not import client"),
        ("helpers/__init__.py", "", "helpers: is in no layer"),
    ],
)
def test_an_import_that_points_upwards_is_found(tmp_path: Path, path: str, source: str, says: str) -> None:
    _make_tree(tmp_path)
    target = tmp_path / PACKAGE / path
    target.parent.mkdir(exist_ok=True)
    target.write_text(source)
    (violation, *_) = _violations(tmp_path)
    assert says in violation


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("daemon/main.py", "from sbus import __version__\nfrom sbus_programs.config import Settings\nfrom . import broker"),
        (
            "dataplane/switch.pyx",
            "from libc.errno cimport EAGAIN, EINTR\nfrom sbusd.dataplane.peer cimport Peer\nfrom sbus.protocol import keys",
        ),
        ("feeds/main.py", "import asyncio\nfrom sbus import Bus\nfrom sbus.protocol import keys"),
    ],
)
def test_an_import_that_points_downwards_is_not_found(tmp_path: Path, path: str, source: str) -> None:
    _make_tree(tmp_path)
    (tmp_path / PACKAGE / path).write_text(source)
    assert not _violations(tmp_path)


@pytest.mark.slow
def test_the_daemon_starts_without_unneeded_modules(tmp_path: Path) -> None:
    require(importlib.util.find_spec("sbusd.daemon.main") is not None, "needs the daemon", could_run=True)
    command = [sys.executable, "-X", "importtime", "-m", "sbusd.daemon.main", "-f", "-a", str(tmp_path / "s")]
    env = {"PATH": os.defpath, "PYTHONPATH": str(ROOT)}
    log = tmp_path / "stderr"
    with log.open("w") as errors, subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors) as process:
        assert process.stdout is not None
        process.stdout.read()  # ends when the bus is ready
        process.send_signal(signal.SIGTERM)
        status = process.wait(timeout=30)
    said = log.read_text()
    assert status == 0, said
    imported = {match[1].split(".")[0] for match in re.finditer(r"^import time:.*\|\s+([\w.]+)$", said, re.MULTILINE)}
    assert "socket" in imported  # the list is one
    assert not imported & NOT_AT_START


def _make_tree(root: Path) -> None:
    """Make every part of the project, empty."""
    for part in MAY_IMPORT:
        folder = root / PACKAGE / part
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text("")


if __name__ == "__main__":
    ARCHITECTURE.write_text(layer_diagram.with_picture(ARCHITECTURE.read_text(), MAY_IMPORT))
