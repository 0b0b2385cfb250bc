"""make run: a bus of systemd's, two users, and what they can do; ends with status 0 only if all of it happened as said."""

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
from tools.demo.scenes import Setting, show
from tools.demo.users import two_people
from tools.stage import ROOT, make_stage, open_folder, own_stage

FAILED = 1

REPORT = ROOT / "build" / "sbus-report.html"
"""The page that is left, in a folder that git ignores."""


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
    """Set the stage, show everything, and take the stage down, whatever happens."""
    stage = make_stage()
    try:
        folder = open_folder("sbus-demo")
        try:
            with two_people() as people:
                show(Setting(stage, own_stage(), folder, report), narrator, people)
        finally:
            shutil.rmtree(folder)
    finally:
        stage.remove()


def _become_root() -> None:
    """Start over by sudo(8), as two users can be played by root alone."""
    sudo = shutil.which("sudo")
    if sudo is None:
        sys.exit("demo: cannot act as two users: root is required and sudo is not installed; run make run as root")
    os.execv(sudo, [sudo, "--", sys.executable, "-m", "tools.demo", *sys.argv[1:]])


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Leave as by Ctrl-C, through every clean-up."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
