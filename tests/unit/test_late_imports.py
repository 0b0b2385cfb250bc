"""Modules that a running service imports: after an upgrade they would be of another version, so each is named here with its reason."""

from __future__ import annotations

import ast
from pathlib import Path

from tools.stage import ROOT

PACKAGES = (
    "sbus_archive/record", "sbus_archive/recorder", "sbus_archive/shipping", "sbus_archive/storage", "sbus_archive/tables",
    "sbus_programs", "sbus_services", "sbusd",
)  # fmt: skip
"""The packages of the daemon and of the services. Those of the clients are tested with the clients."""

REASONS = {
    "sbus_archive/storage/store.py": "at the start: clients of an object store",
    "sbus_archive/tables/delta.py": "in a run of the pipeline, which an upgrade does not wait for",
    "sbus_programs/config/loading.py": "at the start if there is a file; a reload that fails is one record, and the program continues",
    "sbus_programs/config/quantities.py": "by pydantic, which is loaded then",
    "sbusd/daemon/main_loop.py": "at the start, for tests only",
    "sbusd/dataplane/switch_state.py": "by pydantic, which is loaded then",
    "sbus_services/feeds/dbus/connection.py": "at the start: the library is optional",
    "sbus_services/feeds/main.py": "at the start: each feed loads what it needs",
    "sbus_services/link/network/credential_files.py": "of another package, which is optional, at the first connection",
    "sbus_services/metrics/exposition.py": "at the start: the library is optional, and loads all of its modules",
    "sbus_archive/recorder/main.py": "at the start, after the check of the configuration",
    "sbus_services/relay/main.py": "at the start, after the check of the configuration",
    "sbusd/restart/inherited_state.py": "at the start, to restore",
    "sbus_archive/shipping/main.py": "at the start: the library is optional",
    "sbusd/state/records.py": "at the start, to restore",
}
"""Files with imports in functions, and when these run."""


def late_imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Return the imports in functions of a file."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [node for function in functions for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]


def test_each_late_import_of_a_service_has_a_reason() -> None:
    found = {
        path.relative_to(ROOT).as_posix() for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if late_imports(path)
    }
    assert found - REASONS.keys() == set(), "import it at the top, or say here when it is imported"
    assert REASONS.keys() - found == set()
