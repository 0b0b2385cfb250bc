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
from tools.imports import imports_of_tree, module_of, part_of
from tools.stage import HOUSES, ROOT


def _programs(*modules: str) -> set[str]:
    """Return the parts *modules* of sbus_programs, and the protocol."""
    return {"sbus.protocol", *(f"sbus_programs.{module}" for module in modules)}


_SERVICE = {"sbus"} | _programs("config", "helptext", "program", "running_service", "systemd")
_ARCHIVE_PROGRAM = {f"sbus_archive.{part}" for part in ("optional_packages", "record", "storage")} | _programs(
    "config", "helptext", "program", "standard_error", "systemd"
)

MAY_IMPORT = {
    "sbus.protocol": set(),
    "sbus": {"sbus.protocol"},
    "sbus_programs.backoff": set(),
    "sbus_programs.config": _programs(),
    "sbus_programs.exhaustion": set(),
    "sbus_programs.helptext": _programs("exhaustion", "standard_error", "standard_output"),
    "sbus_programs.http_connection": _programs(),
    "sbus_programs.owner_threads": set(),
    "sbus_programs.passed_descriptors": set(),
    "sbus_programs.program": _programs("config", "exhaustion", "standard_error", "standard_output", "systemd"),
    "sbus_programs.running_service": _programs("config", "exhaustion", "systemd"),
    "sbus_programs.socket_owner": set(),
    "sbus_programs.standard_error": _programs(),
    "sbus_programs.standard_output": {"sbus_programs.standard_error"},
    "sbus_programs.systemd": _programs("exhaustion"),
    "sbus_programs.wall_clock": set(),
    "sbusd.dataplane": _programs("config", "owner_threads"),
    "sbusd.state": {"sbusd.dataplane"} | _programs(),
    "sbusd.broker": {"sbusd.dataplane", "sbusd.state"} | _programs("config", "exhaustion", "systemd"),
    "sbusd.restart": {"sbusd.broker", "sbusd.dataplane", "sbusd.state"} | _programs("systemd"),
    "sbusd.daemon": {"sbusd.broker", "sbusd.dataplane", "sbusd.restart"}
    | _programs("config", "exhaustion", "standard_error", "standard_output", "systemd"),
    "sbus_services.feeds": {"sbus"} | _programs("config", "helptext", "program", "standard_error", "systemd"),
    "sbus_services.relay": _SERVICE | _programs("http_connection", "socket_owner", "standard_error"),
    "sbus_services.link": _SERVICE | _programs("backoff"),
    "sbus_services.blob": _SERVICE | _programs("exhaustion", "owner_threads", "passed_descriptors", "standard_error"),
    "sbus_services.web": _SERVICE | _programs("http_connection", "socket_owner", "standard_error", "standard_output"),
    "sbus_services.store": _SERVICE | _programs("backoff", "wall_clock"),
    "sbus_services.trigger": _SERVICE | _programs("backoff"),
    "sbus_services.metrics": _SERVICE
    | _programs("backoff", "exhaustion", "http_connection", "owner_threads", "passed_descriptors", "socket_owner")
    | _programs("standard_error"),
    "sbus_archive.optional_packages": set(),
    "sbus_archive.storage": _programs(),
    "sbus_archive.record": {"sbus_archive.storage"} | _programs(),
    "sbus_archive.tables": {"sbus_archive.record", "sbus_archive.storage"},
    "sbus_archive.report": {"sbus_archive.optional_packages", "sbus_archive.record", "sbus_archive.tables"} | _programs(),
    "sbus_archive.recorder": {"sbus"} | _ARCHIVE_PROGRAM | _programs("wall_clock"),
    "sbus_archive.shipping": _ARCHIVE_PROGRAM | _programs("standard_output", "wall_clock"),
    "sbus_archive.pipeline": {"sbus", "sbus_archive.tables"} | _ARCHIVE_PROGRAM | _programs("standard_output"),
    "sbusctl": {f"sbus_archive.{part}" for part in ("optional_packages", "record", "recorder", "report", "storage", "tables")}
    | {"sbus", "sbus_services.link", "sbus_services.metrics", "sbus_services.relay"}
    | _programs("config", "helptext", "standard_error", "standard_output", "systemd"),
}
"""For each part of the project, the others that it may import; a package's own __init__.py: none."""

ARCHITECTURE = ROOT / "docs" / "architecture.md"

NOT_AT_START = {"typer", "rich", "pyroute2", "asyncio"}
"""What the daemon's start must not import, so that it is ready within 150 ms."""


def _parts(root: Path) -> set[str]:
    """Return the parts of the packages in the tree *root*: their folders and modules."""
    paths = [path for house in HOUSES for path in (root / house).iterdir() if path.is_dir() or path.suffix == ".py"]
    return {part_of(f"{path.parent.name}.{path.stem}") for path in paths if path.stem not in {"__init__", "__pycache__"}}


def _violations(root: Path) -> list[str]:
    """Return a line for each import under *root* that does not point downwards."""
    parts = _parts(root)
    unknown = sorted(parts - MAY_IMPORT.keys())
    wrong = [f"{part}: is in no layer; add it to MAY_IMPORT" for part in unknown]
    for each in imports_of_tree(root):
        origin, target = part_of(module_of(each.path)), part_of(each.target)
        if target in parts | set(HOUSES) and target != origin and target not in MAY_IMPORT.get(origin, set()):
            wrong.append(f"{each}: {origin} may not import {target}")
    return wrong


def _pictures() -> dict[Path, layer_diagram.Rules]:
    """Return the pages with a picture of layers, and the rules that each shows."""
    return {ARCHITECTURE: layer_diagram.rules_of_packages(MAY_IMPORT)} | {
        ROOT / house / "README.md": layer_diagram.rules_of(house, MAY_IMPORT) for house in HOUSES
    }


def test_imports_point_downwards() -> None:
    assert not _violations(ROOT)


def test_each_permission_is_used() -> None:
    used = {(part_of(module_of(each.path)), part_of(each.target)) for each in imports_of_tree(ROOT)}
    assert [(part, other) for part, others in MAY_IMPORT.items() for other in sorted(others) if (part, other) not in used] == []


def test_the_pages_show_the_layers() -> None:
    for page, rules in _pictures().items():
        text = page.read_text()
        assert text == layer_diagram.with_picture(text, rules), f"{page} is not up to date; run: make docs"


def test_a_changed_rule_changes_the_picture() -> None:
    rules: layer_diagram.Rules = {"wire": set(), "daemon": {"wire"}, "client": {"wire"}, "tool": {"client", "wire", "other.package"}}
    text = layer_diagram.with_picture("Layers:\n<!-- layers: begin --><!-- layers: end -->\n", rules)
    assert text.startswith("Layers:\n<!-- layers: begin -->\n\n```\nlayer | parts\n")
    assert "\n2     | tool\n1     | client  daemon\n0     | wire\n" in text
    assert "\ntool   | client  other.package  wire\n" in text
    assert layer_diagram.with_picture(text, rules) == text
    assert layer_diagram.with_picture(text, {**rules, "tool": {"wire"}}) != text


def test_the_rules_of_a_package_are_those_of_its_parts() -> None:
    rules: layer_diagram.Rules = {"a": set(), "b.x": {"a"}, "b.y": {"b.x", "a.p"}, "c": {"b.y"}}
    assert layer_diagram.rules_of_packages(rules) == {"a": set(), "b": {"a"}, "c": {"b"}}
    assert layer_diagram.rules_of("b", rules) == {"x": {"a"}, "y": {"x", "a.p"}}


def test_a_picture_of_many_parts_is_not_wide() -> None:
    many = {f"part_{number:02}": {"wire"} for number in range(40)}
    picture = layer_diagram.draw({"wire": set(), "daemon": {"wire"}, **many, "tool": set(many)})
    assert max(map(len, picture.splitlines())) <= 120
    assert all(picture.count(f"{name}  ") + picture.count(f"{name}\n") + picture.count(f"{name} |") >= 2 for name in many)


def test_a_text_without_a_place_for_the_picture_is_an_error() -> None:
    with pytest.raises(ValueError, match="must have one <!-- layers: begin -->"):
        layer_diagram.with_picture("No markers.\n", MAY_IMPORT)


def _questions(text: str) -> list[tuple[str, str]]:
    """Return the rows of the tables of questions, each as question and file."""
    return [(question, file) for question, file in re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE) if file != "File"]


def test_the_architecture_says_where_to_begin_in_each_part() -> None:
    rows = _questions(ARCHITECTURE.read_text())
    named = {part_of(file.strip("`").replace("/", ".")) for _, file in rows}
    folders = {part for part in MAY_IMPORT if (ROOT / part.replace(".", "/")).is_dir()}
    assert folders - named == set()


@pytest.mark.parametrize("house", HOUSES)
def test_each_package_says_what_its_parts_are(house: str) -> None:
    page = (ROOT / house / "README.md").read_text()
    described = {name.rstrip("/") for name in re.findall(r"^\| `([\w./]+)` \| ", page, re.MULTILINE)}
    modules = () if house in MAY_IMPORT else (".py",)  # of a package that is one part, only the folders
    found = {path.name for path in (ROOT / house).iterdir() if path.is_dir() or path.suffix in modules}
    assert found - {"__pycache__", "__init__.py"} - described == set()
    assert [name for name in described if not (ROOT / house / name).exists()] == []


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
        ("sbus/protocol/keys.py", "from sbus import bus", "sbus.protocol may not import sbus"),
        ("sbus/protocol/keys.py", "def f():\n    import sbus_programs.config", "sbus.protocol may not import sbus_programs.config"),
        ("sbus/protocol/keys.py", "from .. import inbox", "sbus.protocol may not import sbus"),
        ("sbus/a.py", "from sbus_programs import config", "sbus may not import sbus_programs.config"),
        ("sbus/a.py", "import importlib\nimportlib.import_module('sbusd.daemon.main')", "sbus may not import sbusd.daemon"),
        ("sbusctl/a.py", "import sbusd.dataplane.contract as c", "sbusctl may not import sbusd.dataplane"),
        ("sbusctl/a.py", "import os, sbus_services.feeds", "sbusctl may not import sbus_services.feeds"),
        (
            "sbus_services/feeds/main.py",
            "if TYPE_CHECKING:\n    from sbusctl.main import app",
            "sbus_services.feeds may not import sbusctl",
        ),
        ("sbusd/dataplane/switch.pyx", "from sbus.bus cimport (\n    A,\n    B,\n)", "sbusd.dataplane may not import sbus"),
        ("sbusd/dataplane/switch.pxd", "cimport sbusctl.main", "sbusd.dataplane may not import sbusctl"),
        ("sbusd/dataplane/switch.pyx", "cdef f():\n    from ..daemon import main", "sbusd.dataplane may not import sbusd.daemon"),
        ("sbus_archive/record/a.py", "from sbus import Bus", "sbus_archive.record may not import sbus"),
        (
            "sbus_archive/pipeline/main.py",
            "from sbus_archive.recorder import a",
            "sbus_archive.pipeline may not import sbus_archive.recorder",
        ),
        ("sbusd/dataplane/switch.pyi", "from sbus import bus", "sbusd.dataplane may not import sbus"),
        ("sbusd/__init__.py", "from sbus import Bus", "sbusd may not import sbus"),
        ("sbusd/helpers/__init__.py", "", "sbusd.helpers: is in no layer"),
    ],
)
def test_an_import_that_points_upwards_is_found(tmp_path: Path, path: str, source: str, says: str) -> None:
    _make_tree(tmp_path)
    target = tmp_path / path
    target.parent.mkdir(exist_ok=True)
    target.write_text(source)
    (violation, *_) = _violations(tmp_path)
    assert says in violation


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("sbusd/daemon/main.py", "from sbus.protocol import __version__\nfrom sbus_programs.config import Settings\nfrom .. import broker"),
        (
            "sbusd/dataplane/switch.pyx",
            "from libc.errno cimport EAGAIN, EINTR\nfrom sbusd.dataplane.peer cimport Peer\nfrom sbus.protocol import keys",
        ),
        ("sbus_services/feeds/main.py", "import asyncio\nfrom sbus import Bus\nfrom sbus.protocol import keys"),
    ],
)
def test_an_import_that_points_downwards_is_not_found(tmp_path: Path, path: str, source: str) -> None:
    _make_tree(tmp_path)
    (tmp_path / path).write_text(source)
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
        folder = root / part.replace(".", "/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text("")


if __name__ == "__main__":
    for page, rules in _pictures().items():
        page.write_text(layer_diagram.with_picture(page.read_text(), rules))
