"""Names and units of processes, which a later process with the same number does not get."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_programs.systemd import processes
from sbus_programs.systemd.processes import Placement, command_name, placement_of, start_ticks, unit_at, unit_of_cgroups, unit_of_process


def test_command_names() -> None:
    assert command_name(os.getpid()) == Path("/proc/self/comm").read_text().strip()
    assert command_name(None) == "-"
    assert command_name(0) == "-"
    assert command_name(-1) == "-"
    assert command_name(1 << 40) == "-"


def test_the_unit_is_that_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a unit makes below itself can have any name: monitor --filter-unit would take it for a unit of the system."""
    text = "0::/system.slice/box.service/nginx.service\n"
    monkeypatch.setattr("sbus_programs.systemd.processes.open", lambda *_, **__: io.StringIO(text), raising=False)
    assert processes.process_of(os.getpid(), time.time()).unit == "box.service"


def test_a_process_is_known_by_the_time_of_its_beginning() -> None:
    """A process id that was reused after the connection belongs to another process."""
    mine = processes.process_of(os.getpid(), time.time())
    assert mine.command == processes.command_name(os.getpid())
    assert processes.process_of(os.getpid(), 1_000.0) == processes.Process()
    assert processes.process_of(os.getpid(), None) == processes.Process()
    assert processes.process_of(None, time.time()) == processes.process_of(0, time.time()) == processes.Process()
    assert processes.process_of(1 << 22, time.time()) == processes.Process()


def test_a_process_that_changes_during_the_lookup_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = iter([1, 2])
    monkeypatch.setattr(processes, "start_ticks", lambda _pid: next(begun))
    assert processes.process_of(os.getpid(), time.time()) == processes.Process()


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/nginx.service\n", "nginx.service"),
        ("0::/system.slice/system-getty.slice/getty@tty1.service\n", "getty@tty1.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "session-3.scope"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app.service\n", "user@1000.service/app.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/init.scope\n", "user@1000.service/init.scope"),
        ("0::/system.slice/box.service/nginx.service\n", "box.service"),  # what a delegated unit makes below itself
        ("0::/user.slice/user-1000.slice/user@1000.service/nginx.service/x.service\n", "user@1000.service/nginx.service"),
        ("12:pids:/a\n1:name=systemd:/system.slice/old.service\n0::/\n", "old.service"),
        ("0::/system.slice/_cgroup.service\n", "cgroup.service"),
        ("0::/\n", None),
        ("0::/docker/123\n", None),
        ("", None),
        ("garbage", None),
        ("0::/a\tb.service\n", None),
        ("0::/" + "x" * 300 + ".service\n", None),
    ],
)
def test_known_groups(text: str, unit: str | None) -> None:
    assert unit_of_cgroups(text) == unit


@pytest.mark.parametrize(
    ("path", "placement"),
    [
        ("/system.slice/nginx.service", Placement("nginx.service", "system.slice")),
        ("/system.slice/system-getty.slice/getty@tty1.service", Placement("getty@tty1.service", "system-getty.slice")),
        ("/system.slice/dev-disk-by\\x2dlabel-root.swap", Placement("dev-disk-by\\x2dlabel-root.swap", "system.slice")),
        ("/init.scope", Placement("init.scope", "-.slice")),
        ("/user.slice/user-1000.slice/session-3.scope", Placement("session-3.scope", "user-1000.slice")),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/nginx.service",
            Placement("user@1000.service", "user-1000.slice", "nginx.service"),
        ),
        ("/user.slice/user-1000.slice/user@1000.service/init.scope", Placement("user@1000.service", "user-1000.slice", "init.scope")),
        ("/user.slice/user-1000.slice/user@1000.service", Placement("user@1000.service", "user-1000.slice")),
        (
            "/user.slice/user-1000.slice/user@1000.service/system.slice/nginx.service/x.service",
            Placement("user@1000.service", "user-1000.slice", "nginx.service"),
        ),
        # What a delegated unit or a container makes below itself is not a unit.
        ("/system.slice/box.service/nginx.service", Placement("box.service", "system.slice")),
        ("/system.slice/box.service/system.slice/nginx.service", Placement("box.service", "system.slice")),
        ("/machine.slice/machine-x.scope/payload/system.slice/nginx.service", Placement("machine-x.scope", "machine.slice")),
        ("/system.slice/user@1000.service.d/nginx.service", Placement("", "system.slice")),
        ("/docker/123", Placement("", "")),
        ("/docker/system.slice/nginx.service", Placement("", "")),
        ("/docker.slice/123/nginx.service", Placement("", "docker.slice")),
        ("/system.slice", Placement("", "system.slice")),
        ("/system.slice/_cgroup.service", Placement("cgroup.service", "system.slice")),
        ("/system.slice/__own.service", Placement("_own.service", "system.slice")),
        ("/system.slice/nginx.service ", Placement("", "system.slice")),
        ("/system.slice/ngi\tnx.service", Placement("", "system.slice")),
        ("/system.slice/ngınx.service", Placement("", "system.slice")),
        ("/system.slice/nginx.service\\x2d", Placement("", "system.slice")),
        (f"/system.slice/{'x' * 300}.service", Placement("", "system.slice")),
        ("/", None),
        ("", None),
        ("/..", None),
        ("/../system.slice/nginx.service", None),
        ("/system.slice/../nginx.service", None),
        ("/system.slice/nginx.service (deleted)", None),
        ("system.slice/nginx.service", None),
    ],
)
def test_the_place_of_a_path(path: str, placement: Placement | None) -> None:
    assert placement_of(f"0::{path}\n") == placement


def test_only_the_hierarchy_of_version_2_counts() -> None:
    assert placement_of("1:name=systemd:/system.slice/old.service\n0::/\n") is None
    assert placement_of("1:name=systemd:/system.slice/old.service\n") is None
    assert placement_of("1:name=systemd:/\n0::/system.slice/new.service\n") == Placement("new.service", "system.slice")
    assert placement_of("garbage") is None


def test_a_newline_in_a_name_adds_no_path() -> None:
    """The kernel refuses such names; if it did not, the process would have two paths."""
    assert placement_of("0::/system.slice/box.service/a\n0::/system.slice/nginx.service\n") is None


FOLDERS = st.sampled_from(
    [
        "system.slice",
        "a-b.slice",
        "nginx.service",
        "_x.service",
        "run-1.scope",
        "user@7.service",
        "user@x.service",
        "docker",
        "x.slice.d",
        "",
        "..",
    ]
)


@given(st.lists(FOLDERS, max_size=6))
def test_the_first_folder_that_is_no_slice_decides(folders: list[str]) -> None:
    found = placement_of(f"0::/{'/'.join(folders)}\n")
    if ".." in folders or "/".join(folders) == "":
        assert found is None
        return
    assert found is not None
    slices = [name for name in folders if name.endswith(".slice")]
    outer = next((name for name in folders if not name.endswith(".slice")), "")
    is_unit = outer.endswith((".service", ".scope"))
    assert found.unit == (outer.removeprefix("_") if is_unit else "")
    # The user's part is empty but for the unit of a user's service manager, whose number the system has chosen.
    assert not found.user_unit or outer == "user@7.service"
    leading = folders[: folders.index(outer)] if outer in folders else slices
    assert found.slice == (leading[-1] if leading else "-.slice" if is_unit else "")


@given(st.text(max_size=200))
def test_no_text_is_an_error(text: str) -> None:
    found = placement_of(text)
    assert found is None or all(part.isascii() and "/" not in part for part in found)


def test_members_and_the_path() -> None:
    own = Placement("user@7.service", "user-7.slice", "app.service")
    assert own.members() == {"unit": "user@7.service", "slice": "user-7.slice", "user_unit": "app.service"}
    assert own.path == "user@7.service/app.service"
    assert Placement().members() == {"unit": None, "slice": None, "user_unit": None}
    assert Placement("a.service").path == "a.service"


@pytest.mark.parametrize("pid", [None, 0, -1, 2**30])
def test_an_invalid_process_has_no_unit(pid: int | None) -> None:
    assert unit_of_process(pid) is None


def test_this_process_is_read() -> None:
    unit = unit_of_process(os.getpid())
    assert unit is None or "." in unit


@pytest.fixture
def in_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process is in a unit, also where the tests run outside of one."""
    monkeypatch.setattr(processes, "unit_of_process", lambda _pid: "app.service")


@pytest.mark.usefixtures("in_a_unit")
def test_a_reused_number_is_another_process() -> None:
    pid = os.getpid()
    assert unit_at(pid, time.time()) == "app.service"
    assert unit_at(pid, 1_000.0) is unit_at(pid, None) is unit_at(None, time.time()) is unit_at(1 << 22, time.time()) is None


@pytest.mark.usefixtures("in_a_unit")
def test_a_process_keeps_its_unit_after_the_wall_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    connected = time.time()
    monkeypatch.setattr(time, "time", lambda: connected + 3600)
    assert unit_at(os.getpid(), connected) == unit_at(os.getpid(), connected + 3600) == "app.service"


@pytest.mark.usefixtures("in_a_unit")
def test_a_process_that_changes_meanwhile_has_no_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = iter([1, 2])
    assert start_ticks(os.getpid()) is not None
    monkeypatch.setattr(processes, "start_ticks", lambda _pid: next(begun))
    assert unit_at(os.getpid(), time.time()) is None


@pytest.mark.parametrize("separator", ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_only_a_line_feed_separates_lines(separator: str) -> None:
    forged = f"0::/user.slice/user-1000.slice/user@1000.service/x{separator}0::/system.slice/nginx.service\n"
    placement = placement_of(forged)
    assert placement is not None
    assert (placement.unit, placement.slice) == ("user@1000.service", "user-1000.slice")
    assert unit_of_cgroups(forged) == "user@1000.service/nginx.service", "below the own unit: never that of the system"
    assert placement_of(forged.replace("0::/user", "1:name=systemd:/user", 1)) is None
