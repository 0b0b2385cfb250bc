"""The progress that a build of packages shows."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tools.packages.progress import BuildProgress


def test_each_stage_is_shown_once_and_a_long_one_again(tmp_path: Path) -> None:
    shown: list[str] = []
    progress = BuildProgress("deb", "build.log", tmp_path, shown.append)
    now = time.time()
    root = tmp_path / "build-root-abc.new"
    root.mkdir()
    progress.update(now)
    progress.update(now + 1)
    root.rmdir()
    log = tmp_path / "build.log"
    log.write_text("$ dpkg-buildpackage\n   dh_auto_clean\n")
    os.utime(log, (now + 5, now + 5))
    progress.update(now + 2)
    log.write_text(log.read_text() + "   dh_auto_build\ngcc ...\n")
    os.utime(log, (now + 5, now + 5))
    progress.update(now + 3)
    progress.update(now + 40)
    stages = [line.split(": ", 2)[2].partition(" (log")[0] for line in shown]
    assert stages == [
        "downloading a root of Debian 13 and unpacking it; this is kept for later builds",
        "preparing",
        "compiling",
        "still compiling",
    ]
    assert shown[0].startswith("deb: 0 s: ")


def test_the_log_of_an_earlier_build_is_not_shown(tmp_path: Path) -> None:
    shown: list[str] = []
    log = tmp_path / "build.log"
    log.write_text("   dh_auto_build\n")
    os.utime(log, (1, 1))
    BuildProgress("rpm", "build.log", tmp_path, shown.append).update(time.time())
    assert shown == ["rpm: 0 s: copying the sources"]


def test_the_steps_of_both_builders_are_known(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    shown: list[str] = []
    progress = BuildProgress("rpm", "build.log", tmp_path, shown.append)
    for step in ("Executing(%build): /bin/sh", "Executing(%install): /bin/sh", "Processing files: sbusd"):
        log.write_text(f"{step}\n")
        os.utime(log, (time.time() + 5,) * 2)
        progress.update(time.time())
    assert [line.split(": ", 2)[2].partition(" (log")[0] for line in shown] == [
        "compiling",
        "installing into the packages",
        "writing the packages",
    ]
