"""Broken drop-ins: the bus starts, no rule of another file is lost, and the limits hold. Spec: sbusd.toml(5), FAULTS."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from sbus.protocol.credentials import Credentials
from sbus.protocol.keys import KeySpace
from sbus_programs.config import ConfigError, Configuration, check_daemon_settings, load_configuration
from sbus_programs.config.rules import MAX_PREFIX_BYTES, MAX_PUBLISH_RULES, MAX_RULES
from sbus_programs.config.users import NO_ID
from sbusd.broker.policy import Policy

ALICE = Credentials(1, 1_000, 1_000)

DENIAL = '[[policy]]\nkeys = "secret/"\npublish = "deny"\nsubscribe = "deny"\n'

PUBLISH_RULES = "".join(f'[[policy]]\nkeys = "main/{number}/"\npublish = "deny"\n' for number in range(MAX_PUBLISH_RULES))

RULES = "".join(f'[[policy]]\nkeys = "main/{number}/"\nsubscribe = "deny"\n' for number in range(MAX_RULES))


def _load(folder: Path, main: str = "", **drop_ins: str | bytes | None) -> Configuration:
    """Return the configuration of a main file and *drop_ins* by their names without ``.toml``; None is a link to nowhere."""
    (folder / "x.toml").write_text(main)
    (folder / "x.toml.d").mkdir(exist_ok=True)
    for name, content in drop_ins.items():
        file = folder / "x.toml.d" / f"{name}.toml"
        file.unlink(missing_ok=True)
        if content is None:
            file.symlink_to("nowhere")
        else:
            file.write_bytes(content.encode() if isinstance(content, str) else content)
    return load_configuration(folder / "x.toml")


def _may_publish(configuration: Configuration, key: bytes, who: Credentials = ALICE) -> bool:
    return Policy(configuration.settings.policy).publication(KeySpace(), key, who).is_allowed


@pytest.mark.parametrize("other", [None, '[log]\nlevle = "info"\n', "x =", "policy = []\n"])
def test_a_file_without_rules_keeps_those_of_the_files_before_it(tmp_path: Path, other: str | None) -> None:
    found = _load(tmp_path, DENIAL, a=DENIAL.replace("secret", "private"), b=other)
    assert [rule.keys for rule in found.settings.policy] == ["secret/", "private/"]
    assert not _may_publish(found, b"secret/x")
    assert not _may_publish(found, b"private/x")
    assert _may_publish(found, b"other")


@pytest.mark.parametrize("is_link", [False, True])
def test_a_fifo_is_a_fault_and_does_not_block(tmp_path: Path, is_link: bool) -> None:
    _load(tmp_path, "", a="")
    file = tmp_path / "x.toml.d" / "b.toml"
    fifo = tmp_path / "fifo" if is_link else file
    os.mkfifo(fifo)
    if is_link:
        file.symlink_to(fifo)
    found: list[Configuration] = []
    thread = threading.Thread(target=lambda: found.append(load_configuration(tmp_path / "x.toml")), daemon=True)
    thread.start()
    thread.join(30)
    if thread.is_alive():
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        pytest.fail("waits for a writer")
    (fault,) = found[0].faults
    assert fault.reason == "not a regular file; replace or remove it"
    assert "" in fault.denied


def test_a_socket_is_a_fault(tmp_path: Path) -> None:
    _load(tmp_path, "")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "x.toml.d" / "a.toml"))
        (fault,) = load_configuration(tmp_path / "x.toml").faults
    assert "not a regular file" in fault.reason


def test_a_directory_is_a_fault(tmp_path: Path) -> None:
    _load(tmp_path, "")
    (tmp_path / "x.toml.d" / "a.toml").mkdir()
    (fault,) = load_configuration(tmp_path / "x.toml").faults
    assert fault.reason == "not a regular file; replace or remove it"


def test_a_link_to_dev_null_masks_and_no_other_device_does(tmp_path: Path) -> None:
    file = tmp_path / "x.toml.d" / "a.toml"
    _load(tmp_path, DENIAL)
    file.symlink_to("/dev/null")
    assert load_configuration(tmp_path / "x.toml").faults == ()
    file.unlink()
    file.symlink_to("/dev/zero")
    (fault,) = load_configuration(tmp_path / "x.toml").faults
    assert "not a regular file" in fault.reason


@pytest.mark.parametrize(
    ("main", "drop_in"),
    [
        (PUBLISH_RULES, DENIAL),
        (PUBLISH_RULES, DENIAL + "x =\n"),
        (RULES, DENIAL),
        (PUBLISH_RULES + RULES[: RULES.index('[[policy]]\nkeys = "main/900/"')], DENIAL),
    ],
)
def test_without_room_for_a_denial_the_last_rules_are_replaced(tmp_path: Path, main: str, drop_in: str) -> None:
    found = _load(tmp_path, main, a=drop_in, b="admins = [7]\n")
    rules = found.settings.policy
    assert len(rules) <= MAX_RULES
    assert sum(rule.publish is not None for rule in rules) <= MAX_PUBLISH_RULES
    last = rules[-1]
    assert (last.keys, last.publish, last.subscribe, last.users, last.groups) == ("", "deny", "deny", (), ())
    # Rules before the closed end are as they were.
    assert [rule.keys for rule in rules[:-1]] == [f"main/{number}/" for number in range(len(rules) - 1)]
    assert not _may_publish(found, b"secret/x")
    assert not _may_publish(found, b"main/62/x")
    assert [fault.denied for fault in found.faults] == [("",)]
    assert found.settings.admins == (7,)
    with pytest.raises(ConfigError, match="denies every key to everyone"):
        check_daemon_settings(tmp_path / "x.toml")


def test_rules_of_a_later_file_open_nothing_behind_a_closed_end(tmp_path: Path) -> None:
    found = _load(tmp_path, PUBLISH_RULES, a=DENIAL, b='[[policy]]\nkeys = "secret/"\npublish = "allow"\nsubscribe = "allow"\n')
    assert not _may_publish(found, b"secret/x")
    assert not _may_publish(found, b"other")
    assert [fault.denied for fault in found.faults] == [("",), ("",)]


def test_a_directory_has_no_room_either(tmp_path: Path) -> None:
    _load(tmp_path, PUBLISH_RULES)
    (tmp_path / "x.toml.d" / "a.toml").mkdir()
    found = load_configuration(tmp_path / "x.toml")
    assert any("" in fault.denied for fault in found.faults)
    assert not _may_publish(found, b"other")


def test_a_prefix_that_is_too_long_is_cut(tmp_path: Path) -> None:
    long = "é" * MAX_PREFIX_BYTES
    found = _load(tmp_path, "", a=DENIAL.replace("secret/", long))
    (fault,) = found.faults
    assert fault.denied == (long[: MAX_PREFIX_BYTES // 2],)
    assert not _may_publish(found, fault.denied[0].encode())


@pytest.mark.parametrize(
    "nested",
    [f"[{'a.' * 3_000}a]\n", f"{'a.' * 3_000}a = 1\n", f"[{'a.' * 125_000}a]\n", "x = " + "[" * 3_000],
    ids=["header", "key", "long-header", "array"],
)
def test_a_deep_table_is_a_fault(tmp_path: Path, nested: str) -> None:
    found = _load(tmp_path, "", a=DENIAL + nested)
    (fault,) = found.faults
    assert fault.denied == ("secret/",)
    assert fault.reason == "tables are nested too deeply: two levels are enough for every key"


def test_a_long_key_is_cut_in_the_fault(tmp_path: Path) -> None:
    (fault,) = _load(tmp_path, "", a="a" * 200_000 + " = 1\n").faults
    assert len(fault.reason) < 1_000


def test_a_file_is_scanned_in_time_by_its_length(tmp_path: Path) -> None:
    for text in ('x = "' + "\\n" * 125_000, '"""\n' + '\\"""\n' * 50_000, 'keys = "' * 30_000):
        assert len(_load(tmp_path, "", a=text).faults) == 1


def test_dots_in_strings_and_comments_nest_nothing(tmp_path: Path) -> None:
    dots = "." * 1_000
    text = f'# {dots}\n[[policy]]\nkeys = "\\"{dots}"\ncomment = \'"#\' # {dots}\npublish = "deny"\n'
    assert _load(tmp_path, "", a=text).faults == ()


def test_a_rule_that_cannot_be_split_in_two_allows_nothing(tmp_path: Path) -> None:
    split = '[[policy]]\nkeys = "lab/"\npublish = "deny"\nsubscribe = "allow"\nusers = ["root", "no-such-user"]\n'
    rest = RULES[: RULES.index('[[policy]]\nkeys = "main/999/"')]
    found = _load(tmp_path, split + rest)
    assert len(found.settings.policy) == MAX_RULES
    first = found.settings.policy[0]
    assert (first.publish, first.subscribe, first.users) == ("deny", None, ())
    assert [fault.denied for fault in found.faults] == [("lab/",)]


@pytest.mark.parametrize("broken", [None, "[", "allowed_users = [", "allowed_users = []\nx = 1\n", "x = 1\n"])
def test_the_allowed_users_of_a_drop_in_that_breaks_are_kept(tmp_path: Path, broken: str | None) -> None:
    before = _load(tmp_path, "", a='allowed_users = ["root", 7]\n')
    assert before.settings.allowed_users == (0, 7)
    _load(tmp_path, "", a=broken)
    for _ in range(2):
        before = load_configuration(tmp_path / "x.toml", held=before)
        assert before.settings.allowed_users == (0, 7)
        assert len(before.faults) == 1


def test_an_empty_list_of_users_is_kept_too(tmp_path: Path) -> None:
    before = _load(tmp_path, "", a='allowed_users = ["no-such-user"]\n')
    _load(tmp_path, "", a=None)
    assert load_configuration(tmp_path / "x.toml", held=before).settings.allowed_users == (NO_ID,)


def test_the_allowed_users_of_each_file_are_kept(tmp_path: Path) -> None:
    before = _load(tmp_path, "", a="allowed_users = [5]\n", b="allowed_users = [6]\n")
    _load(tmp_path, "", a=None, b="")
    assert load_configuration(tmp_path / "x.toml", held=before).settings.allowed_users == (5,)


def test_the_allowed_users_of_another_file_do_not_replace_those_of_a_broken_one(tmp_path: Path) -> None:
    before = _load(tmp_path, "allowed_users = [5]\n", a="")
    _load(tmp_path, "allowed_users = [6]\n", a=None)
    assert load_configuration(tmp_path / "x.toml", held=before).settings.allowed_users == (6,)


@pytest.mark.parametrize("broken", [None, "[", "x = 1\n"])
def test_the_allowed_users_of_the_overridden_file_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str | None) -> None:
    monkeypatch.setattr("sbus_programs.config.files.SYSTEM_FOLDER", tmp_path)
    monkeypatch.setattr("sbus_programs.config.files.OTHER_FOLDERS", (tmp_path / "lib",))
    (tmp_path / "lib" / "x.toml.d").mkdir(parents=True)
    (tmp_path / "lib" / "x.toml.d" / "a.toml").write_text("allowed_users = [0]\n")
    assert _load(tmp_path, "", a=broken).settings.allowed_users == (0,)
    assert _load(tmp_path, "", a="").settings.allowed_users == ()


def test_a_broken_file_does_not_open_the_bus_that_an_earlier_one_closed(tmp_path: Path) -> None:
    assert _load(tmp_path, "allowed_users = [5]\n", a="allowed_users = []\nx = 1\n").settings.allowed_users == (5,)


@pytest.mark.parametrize(
    ("broken", "denied"),
    [
        ('[[policy]]\nkeys = "caf\xe9/"\npublish = "deny"\n'.encode("latin-1"), ("caf",)),
        (b'policy = [{keys = "a/", publish = "deny"}, {keys = \'b/\', publish = "deny"}]\nx =\n', ("",)),
        (b'policy = [{keys = "a/", publish = "deny"}, {keys = 1}]\nx =\n', ("",)),
        (b'policy = [{keys = "a/", publish = "deny"}, {"\\u006beys" = "b/"}]\nx =\n', ("",)),
        ('policy = [{keys = "a/"}, {comment = "\u2028#", keys = "b/"}]\nx =\n'.encode(), ("",)),
        (b'[[policy]]\nkeys = "a/" # was: keys = "old/"\npublish = "deny"\n[[policy]]\nkeys: "secret/"\n', ("",)),
        (b'policy = [\n{keys = "a/", publish = "deny"},\n{keys "secret/", publish = "deny"},\n]\n', ("",)),
        (b'[[policy]]\nkeys = "a/"\n[[policy]\nkeys = "b/"\n', ("",)),
        (b'[[policy]]\nkeys = "a/"\n[ [policy]]\nkeys = "b/"\n', ("",)),
        (b'[[policy]]\nkeys = "a/"\npublish = """\n[[policy]]\nkeys = "b/"\n', ("",)),
        (b'[[policy]]\nkeys = "a/" # keys = "old/"\nx =\n# [[policy]]\n[[policy]]\n keys=\'b/\'#c\n', ("a/", "b/")),
    ],
)
def test_no_prefix_of_a_broken_file_is_missed(tmp_path: Path, broken: bytes, denied: tuple[str, ...]) -> None:
    assert [fault.denied for fault in _load(tmp_path, "", a=broken).faults] == [denied]


def test_an_unreadable_folder_precedes_all_drop_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files can have been those that decide before the others."""
    monkeypatch.setattr("sbus_programs.config.files.SYSTEM_FOLDER", tmp_path)
    monkeypatch.setattr("sbus_programs.config.files.OTHER_FOLDERS", (tmp_path / "run", tmp_path / "lib"))
    for name in ("run", "lib"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.toml.d").symlink_to("x.toml.d")  # a loop: not even root can read it
    found = _load(tmp_path, "", a='[[policy]]\nkeys = "open/"\npublish = "allow"\n')
    assert found.files == (tmp_path / "x.toml", tmp_path / "run/x.toml.d", tmp_path / "lib/x.toml.d", tmp_path / "x.toml.d/a.toml")
    assert not _may_publish(found, b"open/x")
