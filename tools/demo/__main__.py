"""make run: show what two users can do on a bus. Exit status 0 only if every step had the announced result."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tools.demo.narrator import DemoError, Narrator
from tools.demo.scenes import DemoEnvironment, show
from tools.demo.users import two_users
from tools.stage import ROOT, make_stage, open_folder, own_stage

FAILED = 1

REPORT = ROOT / "build" / "sbus-report.html"
"""The report, which is kept, in a folder that git ignores."""


def main() -> int:
    """Run the demonstration and return the process's status."""
    parser = argparse.ArgumentParser(prog="demo", description="Demonstrate sbusd on a bus of its own.")
    parser.add_argument(
        "--report", metavar="FILE", type=Path, default=REPORT, help="write the report to this HTML file (default: %(default)s)"
    )
    report: Path = parser.parse_args().report.absolute()
    if os.geteuid() != 0:
        _become_root()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    narrator = Narrator()
    narrator.end("A demonstration of sbusd, a message bus for one machine. Lines with a $ are commands that you can type.")
    try:
        _run(narrator, report)
    except (DemoError, OSError, RuntimeError) as error:
        print(f"\nThe demonstration failed: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("\nThe demonstration was interrupted and has removed its files.", file=sys.stderr)
        return 128 + signal.SIGINT
    narrator.end(f"The demonstration succeeded and has removed all its files, except the report: {report}")
    narrator.end("Continue with README.md.")
    return 0


def _run(narrator: Narrator, report: Path) -> None:
    """Prepare the stage, show everything, and remove the stage in any case."""
    stage = make_stage()
    try:
        folder = open_folder("sbus-demo")
        try:
            with two_users() as users:
                show(DemoEnvironment(stage, own_stage(), folder, report), narrator, users)
        finally:
            shutil.rmtree(folder)
    finally:
        stage.remove()


def _become_root() -> None:
    """Run again by sudo(8): only root can act as two users."""
    sudo = shutil.which("sudo")
    if sudo is None:
        sys.exit("demo: cannot act as two users: root is required and sudo is not installed; run make run as root")
    os.execv(sudo, [sudo, "--", sys.executable, "-m", "tools.demo", *sys.argv[1:]])


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Exit like Ctrl-C, with all clean-up."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
