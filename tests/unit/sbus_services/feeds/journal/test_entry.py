"""The key of an entry, which users cannot forge, and its payload, which marks everything that is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_services.feeds.journal import entry
from sbus_services.feeds.journal.entry import (
    MESSAGE_BYTES,
    PAYLOAD_BYTES,
    VALUE_BYTES,
    BadCursorError,
    Cursor,
    CursorFile,
    Fields,
    JournalEntry,
)
from sbusd.broker import log_messages

CURSOR = Cursor.parse(f"s={'a' * 32};i=1;b={'b' * 32};m=5;t=10;x=1")
PID, UID = 500, 1000


def key(**fields: bytes) -> str:
    return JournalEntry(CURSOR, {"PRIORITY": b"6", **fields}).key


def payload(fields: Fields) -> tuple[dict[str, Any], bool]:
    made, is_whole = JournalEntry(CURSOR, fields).payload()
    assert len(made) <= PAYLOAD_BYTES
    assert made.isascii()
    reported: dict[str, Any] = json.loads(made)
    return reported, is_whole


def read_back(value: str | list[Any]) -> bytes | list[bytes]:
    """Return the value that JSON represents."""
    if isinstance(value, str):
        return value.encode()
    if all(isinstance(each, int) for each in value):
        return bytes(value)
    return [each.encode() if isinstance(each, str) else bytes(each) for each in value]


@pytest.mark.parametrize(
    ("fields", "made"),
    [
        ({"_SYSTEMD_UNIT": b"ssh.service"}, "journal/ssh.service/info"),
        ({"_SYSTEMD_UNIT": b"user@1000.service"}, "journal/user@1000.service/info"),
        ({"_SYSTEMD_UNIT": rb"dev-disk-by\x2did.mount", "PRIORITY": b"3"}, "journal/dev-disk-by%5Cx2did.mount/err"),
        ({"_SYSTEMD_UNIT": b"a/*!\xff.service"}, "journal/a%2F%2A%21%FF.service/info"),
        ({"_SYSTEMD_UNIT": b"x" * 300}, "journal/-/info"),
        ({"_SYSTEMD_UNIT": b""}, "journal/-/info"),
        ({"_TRANSPORT": b"kernel", "PRIORITY": b"0"}, "journal/kernel/emerg"),
        ({"SYSLOG_IDENTIFIER": b"ssh.service"}, "journal/-/info"),
        ({"PRIORITY": b"7"}, "journal/-/debug"),
        ({"PRIORITY": b"8"}, "journal/-/-"),
        ({"PRIORITY": b"66"}, "journal/-/-"),
        ({"PRIORITY": b""}, "journal/-/-"),
        ({"PRIORITY": b"lost"}, "journal/-/-"),
    ],
)
def test_key(fields: dict[str, bytes], made: str) -> None:
    assert key(**fields) == made


def test_entry_without_priority_or_with_several() -> None:
    assert JournalEntry(CURSOR, {}).key == "journal/-/-"
    assert JournalEntry(CURSOR, {"PRIORITY": [b"3", b"6"]}).key == "journal/-/err"
    assert JournalEntry(CURSOR, {"PRIORITY": []}).key == "journal/-/-"


@pytest.mark.parametrize("name", ["UNIT", "OBJECT_SYSTEMD_UNIT", "COREDUMP_UNIT", "TRANSPORT", "SYSTEMD_UNIT"])
def test_users_cannot_write_as_another_unit(name: str) -> None:
    mine = {"_PID": b"77", "_UID": b"1000", "_SYSTEMD_UNIT": b"user@1000.service", "PID": b"1", "UID": b"0"}
    assert key(**mine, **{name: b"ssh.service"}) == "journal/user@1000.service/info"
    del mine["_SYSTEMD_UNIT"]
    assert key(**mine, **{name: b"ssh.service"}) == "journal/-/info"


def test_service_manager_and_root_speak_about_units() -> None:
    assert key(_PID=b"1", _SYSTEMD_UNIT=b"init.scope", UNIT=b"ssh.service") == "journal/ssh.service/info"
    assert key(_PID=b"1", _SYSTEMD_UNIT=b"init.scope") == "journal/init.scope/info"
    assert key(_UID=b"0", _SYSTEMD_UNIT=b"x.service", COREDUMP_UNIT=b"ssh.service") == "journal/ssh.service/info"
    assert key(_UID=b"0", _SYSTEMD_UNIT=b"x.service", OBJECT_SYSTEMD_UNIT=b"ssh.service") == "journal/ssh.service/info"


def test_the_payload_equals_the_output_of_journalctl() -> None:
    reported, is_whole = payload({"MESSAGE": "grüße\x1b[1m".encode(), "TAG": [b"a", b"b"], "BINARY": b"\xff\n\0", "MIXED": [b"a", b"\xff"]})
    assert is_whole
    assert reported == {
        "__CURSOR": CURSOR.text,
        "__REALTIME_TIMESTAMP": "16",
        "__MONOTONIC_TIMESTAMP": "5",
        "MESSAGE": "grüße\x1b[1m",
        "TAG": ["a", "b"],
        "BINARY": [255, 10, 0],
        "MIXED": ["a", [255]],
    }


_VALUES = st.binary(max_size=40) | st.text(max_size=40).map(str.encode)
_NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,20}", fullmatch=True)


@given(st.dictionaries(_NAMES, _VALUES | st.lists(_VALUES.filter(bool), min_size=2, max_size=4), max_size=8))
def test_short_fields_can_be_read_back_exactly(fields: dict[str, bytes | list[bytes]]) -> None:
    reported, is_whole = payload(fields)
    assert is_whole
    assert {name: read_back(value) for name, value in reported.items() if not name.startswith("__")} == fields


def test_value_that_is_not_cut_keeps_half_a_character() -> None:
    half = "é".encode()[:1]
    assert payload({"MESSAGE": b"a" + half})[0]["MESSAGE"] == [97, half[0]]


@pytest.mark.parametrize(("name", "most"), [("MESSAGE", MESSAGE_BYTES), ("OTHER", VALUE_BYTES)])
@pytest.mark.parametrize("kind", [b"a", "é".encode(), b"\x01", b"\xff", "\U0001f600".encode(), b"\xff\xc3"])
def test_long_values_are_cut_with_a_mark(name: str, most: int, kind: bytes) -> None:
    whole = b"x" + kind * (2 * most)
    reported, is_whole = payload({name: whole, "PRIORITY": b"6"})
    assert not is_whole
    assert reported["__CUT"] == [name]
    assert "__OMITTED" not in reported
    part = read_back(reported[name])
    assert isinstance(part, bytes)
    assert whole.startswith(part)
    assert most // 4 < len(part) <= most


def test_value_of_the_longest_length_is_whole() -> None:
    assert payload({"MESSAGE": b"a" * MESSAGE_BYTES, "OTHER": b"b" * VALUE_BYTES})[1]


def test_field_repeated_without_end_is_cut() -> None:
    reported, is_whole = payload({"TAG": [b"x" * 100] * 1000})
    assert not is_whole
    assert reported["__CUT"] == ["TAG"]
    assert 50 < len(reported["TAG"]) < 200


@pytest.mark.parametrize("value", [b"x" * 5000, b"\xff" * 5000, b"\x01" * 9000])
def test_an_entry_of_many_fields_keeps_the_important_ones(value: bytes) -> None:
    many: dict[str, bytes | list[bytes]] = {f"F{number:063}": value for number in range(1000)}
    reported, is_whole = payload({**many, "MESSAGE": b"m" * (1 << 20), "PRIORITY": b"6", "_UID": b"0"})
    assert not is_whole
    assert (reported["PRIORITY"], reported["_UID"], reported["MESSAGE"][:3]) == ("6", "0", "mmm")
    assert reported["__OMITTED"] + sum(name.startswith("F") for name in reported) == 1000


def test_fields_that_each_look_small_cannot_fill_it_with_their_names() -> None:
    many: Fields = {f"F{number:063}": [b"a", b"x" * (1 << 20)] for number in range(1000)}
    reported, _ = payload(many)
    assert len(reported["__CUT"]) + reported["__OMITTED"] == 1000


def is_echo(**fields: bytes) -> bool:
    return entry.is_echo(JournalEntry(CURSOR, fields), PID, UID)


def test_numbers_are_those_of_the_bus() -> None:
    assert log_messages.PACKETS_LOST.id.encode() == entry.PACKETS_LOST
    assert log_messages.QUOTA_REFUSED.id.encode() == entry.QUOTA_REFUSED
    assert log_messages.SUPPRESSED.id.encode() == entry.SUPPRESSED


@pytest.mark.parametrize("unit", [b"sbus.service", b"sbus@lab.service"])
def test_records_that_publishing_causes_are_left_out(unit: bytes) -> None:
    for cause in (entry.PACKETS_LOST, entry.QUOTA_REFUSED, entry.SUPPRESSED):
        assert is_echo(_SYSTEMD_UNIT=unit, MESSAGE_ID=cause)
    assert is_echo(_SYSTEMD_UNIT=unit, MESSAGE_ID=log_messages.POLICY_REFUSED.id.encode(), SBUS_PEER_PID=b"500")


def test_other_records_of_the_bus_are_published() -> None:
    assert not is_echo(_SYSTEMD_UNIT=b"sbus.service", MESSAGE_ID=log_messages.STARTED.id.encode())
    assert not is_echo(_SYSTEMD_UNIT=b"sbus.service", MESSAGE_ID=log_messages.POLICY_REFUSED.id.encode(), SBUS_PEER_PID=b"501")
    assert not is_echo(_SYSTEMD_UNIT=b"sbus.service")


@pytest.mark.parametrize("unit", [b"user@1001.service", b"sbus.service.service", b"xsbus.service", b"sbus-feed@journal.service", b""])
def test_users_cannot_hide_entries(unit: bytes) -> None:
    forged = {"MESSAGE_ID": entry.PACKETS_LOST, "SBUS_PEER_PID": b"500", "SYSLOG_IDENTIFIER": b"sbusd", "UNIT": b"sbus.service"}
    assert not is_echo(_SYSTEMD_UNIT=unit, _UID=b"1001", **forged)
    assert not is_echo(_SYSTEMD_UNIT=unit, _UID=b"1001", _SYSTEMD_USER_UNIT=b"sbus.service", **forged)


def test_the_bus_of_the_feeds_own_user() -> None:
    mine = {"_SYSTEMD_UNIT": b"user@1000.service", "_SYSTEMD_USER_UNIT": b"sbus.service", "MESSAGE_ID": entry.PACKETS_LOST}
    assert is_echo(_UID=b"1000", **mine)
    assert not is_echo(_UID=b"1001", **mine)


def text(number: int = 1, *, source: str = "a", second: int = 1, checksum: int = 7) -> str:
    return f"s={source * 32};i={number:x};b={'b' * 32};m={second:x};t={second:x};x={checksum:x}"


def test_fields_of_a_cursor() -> None:
    cursor = Cursor.parse(text(255, second=16))
    assert (cursor.source, cursor.number, cursor.monotonic, cursor.realtime, cursor.checksum) == ("a" * 32, 255, 16, 16, 7)


@pytest.mark.parametrize(
    "wrong", ["", "s=1", text() + "x\n", text().replace("i=1", "i="), text().upper(), "\0" * 200, text() + "\n" + text()]
)
def test_an_invalid_cursor(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(BadCursorError) as error:
        Cursor.parse(wrong)
    assert len(str(error.value).splitlines()) == 1
    file = tmp_path / "cursor"
    file.write_text(wrong)
    with pytest.raises(BadCursorError):
        CursorFile(file).load()


def test_missing_entries_are_known_within_one_source() -> None:
    first = Cursor.parse(text(5))
    assert [Cursor.parse(text(number)).missing_since(first) for number in (5, 6, 7, 10)] == [0, 0, 1, 4]
    assert Cursor.parse(text(7, source="c")).missing_since(first) is None


def test_order_within_one_source_is_independent_of_the_clock() -> None:
    early, late = Cursor.parse(text(5, second=900)), Cursor.parse(text(6, second=3))
    assert late.is_behind(early)
    assert not early.is_behind(late)
    assert not early.is_behind(early)
    assert not Cursor.parse(text(9, source="c")).is_behind(early)


def test_entry_that_was_copied_to_another_file_is_the_same() -> None:
    assert Cursor.parse(text(5)).is_same_entry(Cursor.parse(text(1, source="c")))
    assert not Cursor.parse(text(5)).is_same_entry(Cursor.parse(text(5, source="c", checksum=8)))
    assert not Cursor.parse(text(5)).is_same_entry(Cursor.parse(text(6)))


def test_the_file_returns_the_saved_cursor(tmp_path: Path) -> None:
    file = CursorFile(tmp_path / "cursor")
    assert file.load() is None
    for number in (1, 2):
        file.save(Cursor.parse(text(number)))
        assert file.load() == Cursor.parse(text(number))
    assert [path.name for path in tmp_path.iterdir()] == ["cursor"]


def test_save_that_fails_leaves_the_old_one_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CursorFile(tmp_path / "cursor")
    file.save(Cursor.parse(text(1)))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        file.save(Cursor.parse(text(2)))
    assert file.load() == Cursor.parse(text(1))
    assert [path.name for path in tmp_path.iterdir()] == ["cursor"]


def test_without_a_path_nothing_is_kept() -> None:
    file = CursorFile(None)
    file.save(Cursor.parse(text()))
    assert file.load() is None
