"""Where configuration files are looked for, and in which order they count."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.config.errors import ConfigError
from sbusd.config.files import configuration_files, default_main_file


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


def test_no_file_is_no_error(tmp_path: Path) -> None:
    assert configuration_files(tmp_path / "x.toml") == []
    assert configuration_files(tmp_path / "none" / "x.toml") == []


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
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


def test_a_file_in_the_folders_place_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x.toml.d").touch()
    assert configuration_files(tmp_path / "x.toml") == []


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    # A loop of links cannot be followed, not even by root.
    (tmp_path / "x.toml.d").symlink_to("x.toml.d")
    with pytest.raises(ConfigError, match=r"x\.toml\.d: cannot be read: Too many levels"):
        configuration_files(tmp_path / "x.toml")


def test_a_path_that_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        configuration_files(tmp_path / ("x" * 300))
