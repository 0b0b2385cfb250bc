"""Where configuration files are looked for, and in which order they count."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sbus.protocol.errors import SbusError
from sbus_programs.config.files import ConfigError, configuration_files, default_main_file, drop_in_folders, overridden
from sbus_programs.config.loading import load_daemon_settings
from sbus_programs.config.settings import DaemonSettings


def test_the_systems_file_is_in_etc() -> None:
    assert default_main_file() == Path("/etc/sbus/sbusd.toml")
    assert default_main_file("other.toml") == Path("/etc/sbus/other.toml")


@pytest.mark.parametrize(
    ("environment", "file"),
    [
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/home/a"}, "/x/sbus/sbusd.toml"),
        ({"HOME": "/home/a"}, "/home/a/.config/sbus/sbusd.toml"),
        ({"XDG_CONFIG_HOME": "", "HOME": "/home/a"}, "/home/a/.config/sbus/sbusd.toml"),
        ({"XDG_CONFIG_HOME": "relative", "HOME": "/home/a"}, "/home/a/.config/sbus/sbusd.toml"),
        ({}, "/.config/sbus/sbusd.toml"),
    ],
)
def test_a_users_file_is_where_xdg_says(environment: dict[str, str], file: str) -> None:
    assert default_main_file(user_bus=True, environment=environment) == Path(file)


def test_a_missing_file_is_not_an_error(tmp_path: Path) -> None:
    assert configuration_files(tmp_path / "x.toml") == []
    assert configuration_files(tmp_path / "none" / "x.toml") == []


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        configuration_files(tmp_path / "x.toml", required=True)


def test_drop_ins_follow_in_order_of_their_names(tmp_path: Path) -> None:
    main, folder = tmp_path / "x.toml", tmp_path / "x.toml.d"
    folder.mkdir()
    for name in ("20-b.toml", "10-c.toml", "README", ".10-c.toml.swp.toml", "9.toml"):
        (folder / name).touch()
    drop_ins = [folder / "10-c.toml", folder / "20-b.toml", folder / "9.toml"]
    assert configuration_files(main) == drop_ins
    main.touch()
    assert configuration_files(main) == [main, *drop_ins]


def test_a_link_that_leads_nowhere_counts_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.toml").symlink_to("nowhere")
    assert configuration_files(tmp_path / "x.toml") == [tmp_path / "x.toml"]


def test_a_file_instead_of_the_directory_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "x.toml.d").touch()
    assert configuration_files(tmp_path / "x.toml") == []


def test_an_unreadable_directory_is_an_error(tmp_path: Path) -> None:
    # A loop of links cannot be followed, not even by root.
    (tmp_path / "x.toml.d").symlink_to("x.toml.d")
    assert configuration_files(tmp_path / "x.toml") == [tmp_path / "x.toml.d"]
    with pytest.raises(ConfigError, match=r"x\.toml\.d: cannot read it: Too many levels"):
        load_daemon_settings(tmp_path / "x.toml")


def test_an_unreadable_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read it: File name too long"):
        configuration_files(tmp_path / ("x" * 300))


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system's main file, with the folders of drop-ins ``etc``, ``run`` and ``lib`` beside each other."""
    for name in ("etc", "run", "lib"):
        (tmp_path / name / "x.toml.d").mkdir(parents=True)
    monkeypatch.setattr("sbus_programs.config.files.SYSTEM_FOLDER", tmp_path / "etc")
    monkeypatch.setattr("sbus_programs.config.files.OTHER_FOLDERS", (tmp_path / "run", tmp_path / "lib"))
    return tmp_path / "etc" / "x.toml"


def test_drop_ins_of_packages_are_read_by_name_among_the_others_and_overridden_by_name(system: Path) -> None:
    root = system.parents[1]
    for file in ("etc/x.toml.d/20-b.toml", "run/x.toml.d/20-b.toml", "run/x.toml.d/30-c.toml", "lib/x.toml.d/30-c.toml"):
        (root / file).touch()
    (root / "lib/x.toml.d/10-a.toml").touch()
    (root / "etc/x.toml.d/05-masked.toml").symlink_to("/dev/null")
    (root / "lib/x.toml.d/05-masked.toml").write_text("wrong")
    names = ["etc/x.toml.d/05-masked.toml", "lib/x.toml.d/10-a.toml", "etc/x.toml.d/20-b.toml", "run/x.toml.d/30-c.toml"]
    assert configuration_files(system) == [root / name for name in names]
    assert overridden(system, root / names[2]) == [root / "run/x.toml.d/20-b.toml"]
    assert overridden(system, root / names[3]) == [root / "lib/x.toml.d/30-c.toml"]
    assert load_daemon_settings(system) == DaemonSettings()


def test_another_bus_and_a_users_have_their_own_drop_ins_alone(system: Path, tmp_path: Path) -> None:
    (tmp_path / "lib/x.toml.d/10-a.toml").touch()
    assert configuration_files(system.with_name("lab.toml")) == []
    assert configuration_files(tmp_path / "home" / "x.toml") == []
    assert drop_in_folders(tmp_path / "home" / "x.toml") == [tmp_path / "home" / "x.toml.d"]


def test_the_folders_of_the_system_are_those_of_systemd() -> None:
    assert drop_in_folders(default_main_file()) == [
        Path("/etc/sbus/sbusd.toml.d"),
        Path("/run/sbus/sbusd.toml.d"),
        Path("/usr/lib/sbus/sbusd.toml.d"),
    ]


def test_the_text_names_file_key_and_reason() -> None:
    assert str(ConfigError(Path("/etc/x.toml"), "limits.queue_bytes", "is wrong")) == "/etc/x.toml: limits.queue_bytes: is wrong"
    assert str(ConfigError(Path("/etc/x.toml"), "", "is not TOML")) == "/etc/x.toml: is not TOML"


def test_the_facts_are_fields() -> None:
    error = ConfigError(Path("/etc/x.toml"), "a", "b")
    assert (error.file, error.key, error.reason) == (Path("/etc/x.toml"), "a", "b")
    assert isinstance(error, SbusError)


def test_a_file_cannot_break_the_line() -> None:
    assert str(ConfigError(Path("/a\nb"), "", "c")) == r"/a\x0ab: c"


@pytest.mark.parametrize("limit", [300, 512, 1_024])
@pytest.mark.parametrize("folder", ["/etc/sbus", f"/srv/{'x' * 250}/{'y' * 250}/{'z' * 250}/{'w' * 250}"], ids=["short", "long"])
@pytest.mark.parametrize("reason", ["must be 1 to 5", "r" * 5_000], ids=["short", "long"])
@pytest.mark.parametrize("key", ["limits.queue_bytes", "k" * 2_000], ids=["short", "long"])
def test_a_cut_text_names_file_and_key_and_shows_the_cut(folder: str, key: str, reason: str, limit: int) -> None:
    error = ConfigError(Path(folder, "sbusd.toml.d/50-link.toml"), key, reason)
    shown = error.shown(limit)
    assert len(shown) <= limit
    assert re.search(rf"sbusd\.toml\.d/50-link\.toml: {key[:79]}.*: {reason[:14]}", shown)
    assert shown == str(error) or shown.count("…") == sum((len(folder) > 100, len(key) > 100, len(reason) > 100))


def test_a_text_that_is_not_too_long_is_whole() -> None:
    error = ConfigError(Path(f"/srv/{'x' * 200}"), "k" * 100, "reason")
    assert error.shown(512) == str(error)
