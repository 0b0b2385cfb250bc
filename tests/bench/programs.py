"""The bench's C programs, built when their source is newer; of ``make bench`` they are the load generator and the floor relay."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "load"
BUILD = HERE / "build"

COMPILE = ("gcc", "-std=gnu11", "-O2", "-g", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wshadow", "-Werror")
LOAD_SOURCES = ("load.c", "pump.c", "trip.c", "churn.c", "hold.c", "burst.c", "message.c", "window.c", "times.c", "bus.c")
FLOOR_SOURCES = ("floor.c", "bus.c")


class BenchError(Exception):
    """The bench could not measure: a program failed, or a relay broke the rules that are measured with it. One line of words."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the built programs are."""

    load: Path
    floor: Path


def build() -> Programs:
    """Compile what has changed.

    Raises: BenchError with the compiler's words if it fails or there is none.
    """
    return Programs(
        load=compile_program("load", [SOURCE / name for name in LOAD_SOURCES]),
        floor=compile_program("floor", [SOURCE / name for name in FLOOR_SOURCES]),
    )


def compile_program(name: str, sources: Sequence[Path], libraries: Sequence[str] = ()) -> Path:
    """Compile the program *name* from *sources*, unless it is newer than every source and header in their folder, and return its path.

    Raises: BenchError with the compiler's words if it fails or there is none.
    """
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process that needs the program waits instead of writing the same file
        return _compile(BUILD / name, sources, libraries)


def _compile(target: Path, sources: Sequence[Path], libraries: Sequence[str]) -> Path:
    """Compile *target* unless it is newer than its sources; the caller holds its lock."""
    newest = max(path.stat().st_mtime for folder in {SOURCE, *(source.parent for source in sources)} for path in folder.glob("*.[ch]"))
    if target.exists() and target.stat().st_mtime > newest:
        return target
    # Under another name first: a bench that is interrupted here must not leave half a program that looks new.
    fresh = target.with_name(f"{target.name}.new")
    command = [*COMPILE, f"-I{SOURCE}", "-o", str(fresh), *map(str, sources), *libraries]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise BenchError("gcc is not installed: the bench compiles its load generator with it") from None
    except subprocess.CalledProcessError as error:
        raise BenchError(f"gcc refused {target.name}: {error.stderr.strip()}") from None
    fresh.replace(target)
    return target
