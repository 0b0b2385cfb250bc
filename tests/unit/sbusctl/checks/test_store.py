"""The checks of the store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbus_programs.config.store import StoreSettings, StreamSettings
from sbus_services.store.engine.clocks import SystemClock
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import EngineError
from sbusctl.checks import CheckResult
from sbusctl.checks.store import FULL_BYTES, check_disk, check_kept_aside, check_settings, is_used, judge_disk, judge_state, not_running

OK, WARN, FAIL, SKIP = CheckResult.OK, CheckResult.WARN, CheckResult.FAIL, CheckResult.SKIP

ENABLED = {"UnitFileState": "enabled", "ActiveState": "failed"}

STREAM = '[[stream]]\nname = "a"\nkeys = ["a/"]\n'


def test_a_store_is_expected_where_it_is_enabled_or_configured(tmp_path: Path) -> None:
    file = tmp_path / "store.toml"
    assert not is_used({}, file)
    assert is_used(ENABLED, file)
    file.write_text(STREAM)
    assert is_used({}, file)
    file.write_text("stream = 5\n")
    assert is_used({}, file)


def test_settings_rights_and_disk_are_checked(tmp_path: Path) -> None:
    file, bus = tmp_path / "store.toml", tmp_path / "sbusd.toml"
    file.write_text(f'file = "{tmp_path}/store.sqlite"\n{STREAM}')
    bus.write_text("")
    found = check_settings("user", file, bus)
    assert [each.check for each in found] == ["store.toml", "store disk", "sbus-store rights", "sbus-store rights"]
    assert [each.result for each in found[2:]] == [FAIL, FAIL]
    bus.write_text(f"[rights]\nvouch = {{ users = [{os.geteuid()}] }}\ndeliver = {{ users = [{os.geteuid()}] }}\n")
    assert check_settings("user", file, bus)[-1].result is OK
    file.write_text("")
    assert check_settings("user", file, bus)[0].result is WARN
    file.write_text("stream = 5\n")
    (finding,) = check_settings("user", file, bus)
    assert finding.result is FAIL


@pytest.mark.parametrize(
    ("free", "size", "result"),
    [
        (FULL_BYTES - 1, 1 << 40, FAIL),
        (FULL_BYTES, 1 << 40, WARN),
        (1 << 30, 1 << 40, OK),  # little of a large disk, but much
        (100 << 20, 1 << 30, OK),  # a tenth of a small disk
        (50 << 20, 1 << 30, WARN),
    ],
)
def test_a_disk_is_judged(free: int, size: int, result: CheckResult) -> None:
    assert judge_disk(free, size).result is result


def test_a_disk_that_is_not_there_is_skipped(tmp_path: Path) -> None:
    assert check_disk(tmp_path / "none").result is SKIP


def test_damaged_files_that_were_kept_aside_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, bus = tmp_path / "sbus-store" / "store.sqlite", tmp_path / "sbusd.toml"
    assert check_kept_aside([path]) == []
    path.parent.mkdir()
    settings = StoreSettings(streams=(StreamSettings("a", ("a/",)),))
    Engine(path, settings, SystemClock(print, tmp_path / "date")).close()
    assert check_kept_aside([path]) == []
    path.write_bytes(b"no database" * 1_000)
    with pytest.raises(EngineError, match="renamed"):
        Engine(path, settings, SystemClock(print, tmp_path / "date"))
    Engine(path, settings, SystemClock(print, tmp_path / "date")).close()

    (kept,) = (each for each in path.parent.glob("*.damaged-*") if not each.name.endswith("-wal"))
    kept.with_name(f"{kept.name}-wal").write_bytes(b"log" * 1_000)
    (finding,) = check_kept_aside([path])
    assert finding.result is WARN
    assert finding.reason.startswith(f"{kept}, 13.7KiB, was found damaged")
    assert finding.advice.startswith(f"look into it: sqlite3 {kept} .recover; then delete it")
    path.with_name("store.sqlite.damaged-20990101-000000").write_bytes(b"")
    assert "2 files, 13.7KiB, " in check_kept_aside([path])[0].reason

    file = tmp_path / "store.toml"
    file.write_text(f'file = "{path}"\n{STREAM}')
    bus.write_text("")
    assert "damaged file" in [each.check for each in check_settings("user", file, bus)]
    file.write_text(STREAM)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        with monkeypatch.context() as patch:
            patch.setenv("HOME", str(tmp_path / "none"))
            patch.setenv(name, str(tmp_path))
            assert "damaged file" in [each.check for each in check_settings("user", file, bus)], "the file of the service of a user"


def test_an_enabled_service_that_does_not_serve_is_a_failure() -> None:
    (finding,) = not_running(ENABLED, "user", "no service")
    assert (finding.result, finding.advice) == (
        FAIL,
        "remove the cause, then: systemctl --user reset-failed sbus-store.service; systemctl --user restart sbus-store.service",
    )
    assert "is failed and does not serve" in finding.reason
    assert not_running({}, "system", "no service")[0].result is SKIP, "a package may be installed and not enabled"


def test_dead_letters_and_gaps_are_reported() -> None:
    assert [each.result for each in judge_state({"messages": 3})] == [OK]
    found = judge_state({"messages": 3, "dead_letters": 2, "gaps": 5, "open_gaps": 1, "open_missing": 7})
    assert [(each.check, each.result) for each in found] == [("store", OK), ("dead letters", WARN), ("gaps", WARN)]
    assert found[1].reason.startswith("2 dead letters: ")
    assert found[2].reason == "1 gap, where at least 7 messages were not stored"
    (_, unknown) = judge_state({"messages": 3, "open_gaps": 2, "open_missing": 0, "open_unknown": 2})
    assert unknown.reason == "2 gaps, where an unknown number of messages was not stored"
    assert [each.check for each in judge_state({"messages": 3, "damaged": 2, "open_damaged": 1})[1:]] == ["damaged messages"]
    (_, date) = judge_state({"messages": 3, "date_doubted": True})
    assert (date.check, date.result) == ("store date", WARN)
    (_, refused) = judge_state({"messages": 3, "counters": {"publications_refused": 2}})
    assert (refused.check, refused.result) == ("refused messages", WARN)
    assert refused.reason.startswith("the bus refused 2 messages ")
    old = {"messages": 3, "counters": {"publications_refused": 0}, "gaps": 5, "open_gaps": 0, "damaged": 2, "open_damaged": 0}
    assert judge_state(old)[1:] == [], "what was acknowledged causes no warning"
