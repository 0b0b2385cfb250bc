"""Compiles extension modules with AddressSanitizer and UndefinedBehaviorSanitizer, next to their sources.

By the compiler itself: setuptools would take the flags that pyproject.toml gives it.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

COMPILERS = 2
"""Run at a time."""

SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-O1", "-g", "-fno-omit-frame-pointer")
"""Behind a module's own flags: the last of each kind counts."""


class Extension(NamedTuple):
    """One extension module."""

    source: str
    """Its .pyx, relative to the tree."""
    is_cpp: bool = False
    flags: tuple[str, ...] = ()
    """Its own flags of the compiler."""


def extensions_of(tree: Path) -> list[Extension]:
    """Return what the pyproject.toml of a tree lists."""
    table = tomllib.loads((tree / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    return [Extension(entry["sources"][0], entry.get("language") == "c++", tuple(entry["extra-compile-args"])) for entry in table]


def compile_sanitized(tree: Path, extensions: list[Extension]) -> None:
    """Compile *extensions* of *tree*.

    Raises:
        RuntimeError: the compiler fails, or knows no sanitizers.
    """
    with ThreadPoolExecutor(COMPILERS) as pool:
        for _ in pool.map(lambda extension: _compile(tree, extension), extensions):
            pass


def _compile(tree: Path, extension: Extension) -> None:
    """Compile one module, and look that it calls the sanitizers."""
    source = tree / extension.source
    translated = source.with_suffix(".cpp" if extension.is_cpp else ".c")
    module = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
    cython = [sys.executable, "-m", "cython", "-3", "-o", str(translated), extension.source]
    _run(tree, [*cython, "--cplus"] if extension.is_cpp else cython)
    compiler = ["g++" if extension.is_cpp else "gcc", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
    _run(tree, [*compiler, *extension.flags, *SANITIZE, "-o", str(module), str(translated)])
    symbols = module.read_bytes()
    if b"__asan_" not in symbols or b"__ubsan_" not in symbols:
        raise RuntimeError(f"{module} was compiled without the sanitizers")


def _run(tree: Path, command: list[str]) -> None:
    """Run a compiler in the tree."""
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ends with {done.returncode}:\n{done.stderr[-4_000:]}")
