"""Coverage-guided fuzzing by atheris: ``python -m tests.fuzz.run [TARGET] [--seconds N]``; without a target, all share the time.

What is found is kept in build/fuzz/TARGET/: inputs that reach new code, and, as crash-… or timeout-…, those that break the
target's invariant. Put such a one into tests/fuzz/corpus/TARGET/ with the repair: tests/fuzz/test_fuzz.py replays it from then on.
The Python modules of the project are instrumented; the compiled ones are exercised, but do not guide.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from tools.stage import HOUSES, ROOT

CORPUS = Path(__file__).resolve().parent / "corpus"
FOUND = ROOT / "build" / "fuzz"
TARGETS = (
    "addresses",
    "batches",
    "configuration",
    "control",
    "direct_messages",
    "frames",
    "keys",
    "packets",
    "stream_sockets",
    "streams",
    "vouching",
)

HANG_SECONDS = 60
"""An input that takes longer is a finding: the slowest takes milliseconds."""


def main(arguments: Sequence[str]) -> int:
    """Fuzz as *arguments* say and return the exit status: 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description="Fuzz sbusd.")
    parser.add_argument("target", nargs="?", choices=TARGETS, help="what to fuzz; all, one after the other, if left out")
    parser.add_argument("--seconds", type=int, default=0, help="how long, for all targets together (default: until a crash)")
    parser.add_argument("--runs", type=int, default=-1, help="how many inputs for each target (default: no limit)")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default: another each time)")
    parser.add_argument("--found", type=Path, default=FOUND, help="where to keep what is found (default: build/fuzz)")
    options = parser.parse_args(arguments)
    if options.target is None:
        if options.seconds <= 0 and options.runs < 0:
            parser.error("all targets need an end: add --seconds or --runs, or name one target")
        return _fuzz_all(options)
    found = options.found / options.target
    limits = [f"-runs={options.runs}", f"-max_total_time={options.seconds}", f"-seed={options.seed}"]
    fuzz(lambda: _load(options.target), found, [*limits, str(CORPUS / options.target)])
    return 0


def fuzz(load: Callable[[], Callable[[bytes], None]], found: Path, flags: Sequence[str]) -> None:
    """Give the function that *load* imports inputs, until *flags*, which are libFuzzer's, say so; does not return, but exits."""
    # Imported here: the corpus is replayed without it.
    import atheris

    with atheris.instrument_imports(include=list(HOUSES)):
        check = load()
    found.mkdir(parents=True, exist_ok=True)
    hang = (f"-timeout={HANG_SECONDS}", f"-report_slow_units={HANG_SECONDS}")
    own = [f"-artifact_prefix={found}/", *hang, "-print_final_stats=1", str(found)]
    atheris.Setup([sys.argv[0], *own, *flags], check)
    atheris.Fuzz()


def _load(target: str) -> Callable[[bytes], None]:
    """Return the function of a target."""
    check: Callable[[bytes], None] = import_module(f"tests.fuzz.{target}").check
    return check


def _fuzz_all(options: argparse.Namespace) -> int:
    """Fuzz each target in a process of its own, and return the first status that is not 0."""
    statuses = []
    for target in TARGETS:
        limits = ["--seconds", str(-(-options.seconds // len(TARGETS))), "--runs", str(options.runs), "--seed", str(options.seed)]
        command = [sys.executable, "-m", "tests.fuzz.run", target, *limits, "--found", str(options.found)]
        statuses.append(subprocess.run(command, cwd=ROOT, check=False).returncode)
        print(f"fuzz: {target}: {'nothing found' if statuses[-1] == 0 else f'FOUND something, see {options.found / target}'}", flush=True)
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
