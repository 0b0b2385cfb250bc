"""What a run says."""

from __future__ import annotations

import io

import pytest

from sbus_archive.pipeline.progress import Progress, RunTotals


class Terminal(io.StringIO):
    """What looks like one."""

    def isatty(self) -> bool:
        return True


def test_steps_are_shown_on_a_terminal_alone(capsys: pytest.CaptureFixture[str]) -> None:
    terminal, file = Terminal(), io.StringIO()
    Progress(errors=file).step("reading")
    assert file.getvalue() == ""
    progress = Progress(errors=terminal)
    progress.step("reading \x1b[2J")
    progress.print_result("done")
    assert terminal.getvalue() == "\r\x1b[Kreading \\x1b[2J\r\x1b[K"
    assert capsys.readouterr().out == "done\n"


def test_a_quiet_run_still_warns(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    progress = Progress(is_quiet=True, errors=terminal)
    progress.step("reading")
    progress.print_result("done")
    progress.warn("host \n forged")
    assert (terminal.getvalue(), capsys.readouterr().out) == ("sbus-pipeline: host \\x0a forged\n", "")


def test_each_table_has_a_line() -> None:
    totals = RunTotals(records=1_234, kept=2)
    totals.add("traffic", 2, 1_000, 0.25)
    totals.add("traffic", 1, 500, 0.5)
    totals.add("calls", 1, 1, 0.25)
    first, second, whole = totals.lines()
    assert first.split() == ["traffic", "3", "hours", "1,500", "rows", "0.8", "s"]
    assert second.split() == ["calls", "1", "hour", "1", "row", "0.2", "s"]
    assert whole.startswith("1,234 rows read in ")
    assert whole.endswith("; 2 hours kept unchanged because segments are gone")
    assert RunTotals().lines() == ["nothing new"]
    assert RunTotals(absent=2).lines() == ["nothing new; 2 segments missing, listed in the manifests"]
