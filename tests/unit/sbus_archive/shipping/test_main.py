"""The program: which host it ships as, and as which user it runs."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sbus_archive.record.shipped import LIST
from sbus_archive.shipping import main
from sbus_archive.storage.location import LocationError, RemotePath
from sbus_programs.config.documents import read_settings
from sbus_programs.config.files import ConfigError
from sbus_programs.config.recorder import RecorderSettings
from sbus_programs.config.ship import ShipSettings
from tests.support.manual import examples


def test_the_host_is_that_of_the_recorder_by_default(tmp_path: Path) -> None:
    recorder = tmp_path / "recorder.toml"
    assert main._host(ShipSettings(), recorder) == socket.gethostname()
    recorder.write_text('host = "alpha"\n')
    assert main._host(ShipSettings(), recorder) == "alpha"
    (tmp_path / "recorder.toml.d").mkdir()
    (tmp_path / "recorder.toml.d" / "x.toml").write_text('host = "gamma"\n')
    assert main._host(ShipSettings(), recorder) == "gamma"
    recorder.write_text("unknown = 1\n")
    assert main._host(ShipSettings(host="beta"), recorder) == "beta"
    with pytest.raises(ConfigError, match=r"recorder\.toml"):
        main._host(ShipSettings(), recorder)
    with pytest.raises(LocationError, match="invalid host name 'a/b' for an archive"):
        main._host(ShipSettings(host="a/b"), recorder)


def test_the_example_of_the_manual_ships_what_the_recorder_waits_for(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("ship.toml", "recorder.toml")]
    for file, lines in zip(files, [each for each in examples("sbus-ship.8") if " = " in each[0]], strict=True):
        file.write_text("\n".join(lines))
    settings = read_settings(files[:1], ShipSettings)
    assert main._destination(settings) == RemotePath("s3", "records", "fleet")
    assert read_settings(files[1:], RecorderSettings).shipped == f"{settings.state}/{LIST}"


def test_only_the_owner_of_the_state_may_write_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main._check_user(tmp_path)
    main._check_user(tmp_path / "missing")
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(main.StateOwnerError, match=rf"^{tmp_path}: owned by user \w+\. Run sbus-ship as this user, see sbus-ship\(8\)"):
        main._check_user(tmp_path)


def test_a_list_belongs_to_the_server_of_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://store")
    bucket = RemotePath("s3", "bucket", "x")
    headers = [main._new_header(each, "alpha") for each in (bucket, RemotePath("hdfs", "name-node", "x"), Path("/mnt"))]
    assert [header.endpoint for header in headers] == ["https://store", "", ""]
    assert [header.destination for header in headers] == ["s3://bucket/x", "hdfs://name-node/x", "/mnt"]
    assert len({header.id for header in headers}) == 3
    assert all(header.created > 0 for header in headers)
