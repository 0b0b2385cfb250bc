"""``sbusctl report`` as a person calls it."""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sbus_archive.record.layout import HOUR_NS
from sbus_archive.tables.publication import TableWriter
from tests.support.published_tables import publish_record
from tests.support.records import NOON, message
from tests.support.users import User
from tools.stage import ROOT, Stage

pytestmark = pytest.mark.slow

ENV = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}


def report(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run it in *folder*."""
    command = [sys.executable, "-m", "sbusctl.main", "report", *arguments]
    return subprocess.run(command, cwd=folder, env={**ENV, **more}, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Tables of three hours of one host."""
    return publish_record(tmp_path, {"alpha": [message(hour + 1, f"k{hour}/x", ts=NOON + hour * HOUR_NS) for hour in range(3)]})


def test_it_writes_a_page_and_says_where(tables: Path, tmp_path: Path) -> None:
    done = report(tmp_path, "--tables", str(tables))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "2026-11-20 12:00 to 2026-11-20 14:00 UTC on alpha: 3 rows"
    assert done.stdout.splitlines()[3:] == ["written to sbus-report.html"]
    page = tmp_path / "sbus-report.html"
    assert page.read_text().startswith("<!doctype html>")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "tables", "sbus-report.html"}


def test_its_output_can_be_json(tables: Path, tmp_path: Path) -> None:
    done = report(tmp_path, "--tables", str(tables), "-o", "page.html", "-j")
    said = json.loads(done.stdout)
    assert (said["file"], len(said["summary"])) == ("page.html", 3)
    assert said["summary"][0] == "2026-11-20 12:00 to 2026-11-20 14:00 UTC on alpha: 3 rows"


def test_the_page_can_go_to_standard_output(tables: Path, tmp_path: Path) -> None:
    done = report(tmp_path, "--tables", str(tables), "-o", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("<!doctype html>")
    assert done.stdout.rstrip().endswith("</html>")


def test_the_last_hours_alone(tables: Path, tmp_path: Path) -> None:
    done = report(tmp_path, "--tables", str(tables), "--hours", "2")
    assert done.stdout.splitlines()[0] == "2026-11-20 13:00 to 2026-11-20 14:00 UTC on alpha: 2 rows"


def test_users_of_this_machine_have_login_names(tmp_path: Path) -> None:
    root = publish_record(tmp_path, {socket.gethostname(): [message(1)._replace(uid=0)]})
    assert f"busiest user {pwd.getpwuid(0).pw_name} (0)" in report(tmp_path, "--tables", str(root)).stdout


def test_it_opens_a_browser(tables: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >{tmp_path}/opened\n')
    browser.chmod(0o755)
    done = report(tmp_path, "--tables", str(tables), "--open", BROWSER=f"{browser} %s")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "opened").read_text() == (tmp_path / "sbus-report.html").as_uri() + "\n"


def test_a_missing_browser_is_reported(tables: Path, tmp_path: Path) -> None:
    done = report(tmp_path, "--tables", str(tables), "--open", PATH=str(tmp_path), BROWSER="/nowhere %s")
    assert done.returncode == 1
    assert done.stderr == "sbusctl: cannot open sbus-report.html: no web browser found; open the file manually\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--tables", "nowhere"), "nowhere: no tables found. Run: sbusctl report --now --archive DIR --tables nowhere"),
        (("--tables", "archive"), "archive: no tables found. Run: sbusctl report --now"),
        (("--tables", "tables", "-o", "nowhere/page"), "cannot write nowhere/page: No such file or directory"),
        (("--tables", "tables", "-o", "tables"), "cannot write tables: Is a directory"),
    ],
)
def test_errors_are_one_line(tables: Path, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = report(tmp_path, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"sbusctl: {says}\n")


@pytest.mark.parametrize("name", ["pyarrow", "plotly", "deltalake"])
def test_a_missing_package_is_one_line(tables: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(name={name!r})")
    done = report(tmp_path, "--tables", str(tables), PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "pip install" in done.stderr


def test_tables_without_hours_are_no_report(tmp_path: Path) -> None:
    TableWriter(tmp_path / "tables")
    done = report(tmp_path, "--tables", "tables")
    advice = "Run: sbusctl report --now --archive DIR --tables tables"
    says = f"tables: the tables have no hours: no segment of the record was complete. {advice}"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"sbusctl: {says}\n")


def test_tables_of_others_need_permission(tables: Path, tmp_path: Path, second_user: User, stage: Stage, folder: Path) -> None:
    moved = tables.rename(folder / "tables")
    moved.chmod(0o750)
    done = second_user.run(stage.program("sbusctl", "report", "--tables", str(moved)), env=stage.env)
    assert done.returncode == 1
    assert done.stderr.startswith(f"sbusctl: cannot read {moved}: permission denied: tables show the activity of all users. Run this ")


def test_an_archive_without_now_is_a_mistake(tables: Path, tmp_path: Path) -> None:
    done = report(tmp_path, "--tables", str(tables), "--archive", "archive")
    assert done.returncode == 2
    assert "--archive requires --now: without it, the page shows the tables as they are" in done.stderr


def test_standard_output_cannot_be_opened(tables: Path, tmp_path: Path) -> None:
    done = report(tmp_path, "--tables", str(tables), "-o", "-", "--open")
    assert done.returncode == 2
    assert "report: --open requires a file; omit -o -" in done.stderr


def test_the_page_is_compared_with_the_day_before(tmp_path: Path) -> None:
    """The last hour has three messages; the same hour a day before had two, and the week before has no tables."""
    rows = [message(number, ts=NOON + number) for number in (1, 2)] + [
        message(number, ts=NOON + 24 * HOUR_NS + number) for number in (3, 4, 5)
    ]
    root = publish_record(tmp_path, {"alpha": rows})
    done = report(tmp_path, "--tables", str(root), "--hours", "1", "-o", "-")
    assert (done.returncode, done.stderr) == (0, "")
    text = re.findall(r'<script id="data" type="application/json">(.*?)</script>', done.stdout, re.DOTALL)[0]
    data = json.loads(text)
    assert sum(data["traffic"]["messages"]) == 3
    day, week = data["before"]
    assert (day["name"], day["there"], sum(day["traffic"]["messages"])) == ("day", 1, 2)
    assert (week["name"], week["there"], "traffic" in week) == ("week", 0, False)
