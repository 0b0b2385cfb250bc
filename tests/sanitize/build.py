"""A copy of the source tree whose extension modules are sanitized, and a Python that can load them.

The sanitizer's library must be loaded before all others, so into every Python that a test starts, whatever environment the test
gives it: the copy's interpreter is therefore a script that sets the environment and runs the real one under its own name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.sanitize.extensions import Extension, compile_sanitized, extensions_of
from tools.stage import HOUSES, ROOT, open_folder

_NOT_COPIED = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info", "*.so", "*.c", "*.cpp")
_KEPT = {".ci", ".gitignore"}
_HAND_WRITTEN = shutil.ignore_patterns("__pycache__")

INTERPRETER = """#!/bin/bash
# Python with AddressSanitizer, which writes what it finds to {reports}, and UndefinedBehaviorSanitizer, which does not.
case ":$LD_PRELOAD:" in
*:{first}:*) ;;
*) export LD_PRELOAD="{libraries}${{LD_PRELOAD:+:$LD_PRELOAD}}" ;;
esac
# CPython leaks on purpose, and keeps small objects to itself, where no error would be seen.
export ASAN_OPTIONS="detect_leaks=0:exitcode={status}:allocator_may_return_null=1:log_path={reports}/asan"
export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1:exitcode={status}"
export PYTHONMALLOC=malloc
# As many as there are errors: each call of the switch then fails once, instead of once with each error.
export SBUS_FAULTS_ONE_IN=7
exec -a "$0" {python} "$@"
"""

STATUS = 66
"""What a program ends with in which a sanitizer found something."""


@dataclass(frozen=True, slots=True)
class Build:
    """A sanitized build in a folder of its own."""

    folder: Path

    @property
    def tree(self) -> Path:
        """The copy of the source tree."""
        return self.folder / "tree"

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "venv" / "bin" / "python"

    @property
    def _reports(self) -> Path:
        """Where processes of any user leave what was found."""
        return self.folder / "reports"

    def reports(self) -> list[str]:
        """Return what the sanitizers have found so far."""
        return [path.read_text(errors="replace") for path in sorted(self._reports.iterdir())]

    def forget_reports(self) -> None:
        """Remove what was found."""
        for path in self._reports.iterdir():
            path.unlink()

    def run(self, *arguments: str, timeout_seconds: float | None = None, is_captured: bool = False) -> subprocess.CompletedProcess[str]:
        """Run the interpreter in the tree."""
        return subprocess.run(
            [str(self.python), *arguments], cwd=self.tree, check=False, text=True, timeout=timeout_seconds, capture_output=is_captured
        )

    def remove(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.folder)


def make_build(extensions: list[Extension] | None = None) -> Build:
    """Copy the tree and compile *extensions*, or all that the project has; the caller removes it.

    Raises:
        RuntimeError: the compiler fails, or has no sanitizers.
    """
    build = Build(open_folder())
    try:
        _copy_tree(build.tree)
        _make_interpreter(build)
        compile_sanitized(build.tree, extensions_of(build.tree) if extensions is None else extensions)
    except BaseException:
        build.remove()
        raise
    return build


def _copy_tree(tree: Path) -> None:
    """Copy what is neither built nor hidden; the C files of tests are sources."""
    tree.mkdir()
    for entry in ROOT.iterdir():
        if entry.name in _KEPT and entry.is_file():
            shutil.copy2(entry, tree)
        elif entry.name in _KEPT or not _NOT_COPIED(str(ROOT), [entry.name]):
            if entry.is_file():
                shutil.copy2(entry, tree)
            else:
                shutil.copytree(entry, tree / entry.name, ignore=_NOT_COPIED if entry.name in HOUSES else _HAND_WRITTEN)


def _make_interpreter(build: Build) -> None:
    """Write the interpreter, make it a virtual environment's, and install the project's programs in that."""
    reports = build.folder / "reports"
    reports.mkdir()
    reports.chmod(0o1777)
    packages = build.folder / "venv" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "tree.pth").write_text(f"{build.tree}\n{sysconfig.get_path('platlib')}\n")
    real = os.path.realpath(sys.executable)
    (build.folder / "venv" / "pyvenv.cfg").write_text(f"home = {os.path.dirname(real)}\ninclude-system-site-packages = false\n")
    libraries = [_library("libasan.so"), _library("libstdc++.so")]
    script = INTERPRETER.format(reports=reports, first=libraries[0], libraries=":".join(libraries), python=real, status=STATUS)
    build.python.parent.mkdir()
    _write_program(build.python, script)
    programs: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, target in programs.items():
        module, function = target.split(":")
        _write_program(
            build.python.with_name(name), f"#!{build.python}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        )


def _write_program(path: Path, text: str) -> None:
    """Write a script that anybody can run."""
    path.write_text(text)
    path.chmod(0o755)


def _library(name: str) -> str:
    """Return the path of one of the compiler's libraries: the sanitizer's own, or the C++ one, whose exceptions it watches."""
    command = ["gcc", f"-print-file-name={name}"]
    path = Path(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip())
    if not path.is_absolute():
        raise RuntimeError(f"gcc has no {name}: install libgcc-12-dev and libstdc++-12-dev, or what your compiler's are called")
    return str(path.resolve())
