"""A bus starts with any drop-ins, and what is wrong with one opens nothing."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbus.protocol.credentials import Credentials
from sbus.protocol.keys import KeySpace, Reach
from sbus_programs.config import ConfigError, Configuration, check_daemon_settings, load_configuration
from sbus_programs.config.lenient_reader import reports_processes
from sbus_programs.config.users import NO_ID
from sbusd.broker.policy import Policy
from sbusd.dataplane.peer import pidfd_of

ROOT_USER, ALICE = Credentials(1, 0, 0), Credentials(1, 1_000, 1_000)

LAB = '[[policy]]\nkeys = "lab/"\npublish = "allow"\nusers = [1000]\n[[policy]]\nkeys = "lab/"\npublish = "deny"\nsubscribe = "deny"\n'


def _load(folder: Path, drop_in: str | None, main: str = "") -> Configuration:
    """Return the configuration of a main file and the drop-in ``50-lab.toml``; None is a link to nowhere."""
    (folder / "x.toml").write_text(main)
    (folder / "x.toml.d").mkdir(exist_ok=True)
    file = folder / "x.toml.d" / "50-lab.toml"
    file.unlink(missing_ok=True)
    if drop_in is None:
        file.symlink_to("nowhere")
    else:
        file.write_text(drop_in)
    return load_configuration(folder / "x.toml")


def _may_publish(configuration: Configuration, key: bytes, who: Credentials = ALICE) -> bool:
    return Policy(configuration.settings.policy).publication(KeySpace(), key, who).is_allowed


def _may_subscribe(configuration: Configuration, pattern: bytes, who: Credentials = ALICE) -> bool:
    return Policy(configuration.settings.policy).subscription(Reach(KeySpace(), pattern), who).is_allowed


@pytest.mark.parametrize(
    "broken",
    [
        LAB + "nonsense = 1\n",  # an unknown key
        LAB + "x =\n",  # not TOML
        LAB + '[[policy]]\nkeys = "lab/x"\npublish = "perhaps"\n',
        LAB.replace('"lab/"', '"lab/*"'),
        LAB + "[limits]\nqueue_packets = 0\n",
        LAB.replace("[[policy]]", "[[polcy]]"),
        LAB + '[log]\nlevel = "info\n',
    ],
)
def test_a_broken_file_denies_the_keys_of_its_rules_only(tmp_path: Path, broken: str) -> None:
    found = _load(tmp_path, broken)
    for who in (ALICE, ROOT_USER):
        assert not _may_publish(found, b"lab/x", who)
        assert not _may_subscribe(found, b"lab/x", who)
        assert not _may_subscribe(found, b"*/x", who)
        assert _may_publish(found, b"other", who)
        assert _may_subscribe(found, b"other/*", who)
    (fault,) = found.faults
    assert fault.denied == ("lab/",)
    assert str(fault).startswith(f"{tmp_path}/x.toml.d/50-lab.toml: ")
    assert str(fault).endswith('; until this is corrected, keys that begin with "lab/" are denied to everyone')
    assert str(fault).isprintable()
    (rule,) = found.settings.policy
    assert rule.name == f"rule 1 of {tmp_path}/x.toml.d/50-lab.toml: denied because of a fault in 50-lab.toml"


@pytest.mark.parametrize("broken", ["nonsense = 1", "x =", "[limits]\nqueue_packets = 0", None])
def test_a_broken_file_without_rules_denies_nothing(tmp_path: Path, broken: str | None) -> None:
    found = _load(tmp_path, broken, "admins = [7]\n")
    assert found.settings.admins == (7,)
    assert found.settings.policy == ()
    (fault,) = found.faults
    assert fault.denied == ()


@pytest.mark.parametrize(
    "broken",
    [
        "[[policy]]\nkeys = lab/\n",
        "policy = [{keys = 'lab/', publish = 'deny'},\n",
        "[[policy]]\n]",
        '[[policy]]\npublish = "deny"\n',
        "[[policy]]\nkeys = 1\n",
        "policy = 1",
        'keys = "lab/"\n[policy]\n',
    ],
)
def test_unknown_rules_deny_every_key(tmp_path: Path, broken: str) -> None:
    found = _load(tmp_path, broken, LAB.replace("lab", "open"))
    assert not _may_publish(found, b"anything")
    assert not _may_subscribe(found, b"anything")
    # What an earlier file allows was not for this one to deny.
    assert _may_publish(found, b"open/x")
    assert any("" in fault.denied for fault in found.faults)
    with pytest.raises(ConfigError, match="denies every key to everyone"):
        check_daemon_settings(tmp_path / "x.toml")


def test_a_file_that_cannot_be_read_denies_all_unless_it_was_read_before(tmp_path: Path) -> None:
    before = _load(tmp_path, LAB)
    assert (before.faults, _may_publish(before, b"lab/x")) == ((), True)
    file = tmp_path / "x.toml.d" / "50-lab.toml"
    file.unlink()
    file.mkdir()  # not even root can read it
    assert any("" in fault.denied for fault in load_configuration(tmp_path / "x.toml").faults)
    again = load_configuration(tmp_path / "x.toml", held=before)
    assert [fault.denied for fault in again.faults] == [("lab/",)]
    # It is remembered for as long as the fault lasts.
    assert [fault.denied for fault in load_configuration(tmp_path / "x.toml", held=again).faults] == [("lab/",)]


def test_a_dangling_link_denies_the_keys_of_the_removed_file(tmp_path: Path) -> None:
    before = _load(tmp_path, LAB)
    _load(tmp_path, None)
    found = load_configuration(tmp_path / "x.toml", held=before)
    assert not _may_publish(found, b"lab/x")
    assert "dangling symbolic link; restore its target or remove the link" in str(found.faults[0])


def test_a_broken_file_denies_the_keys_of_the_file_that_it_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbus_programs.config.files.SYSTEM_FOLDER", tmp_path)
    monkeypatch.setattr("sbus_programs.config.files.OTHER_FOLDERS", (tmp_path / "lib",))
    (tmp_path / "lib" / "x.toml.d").mkdir(parents=True)
    (tmp_path / "lib" / "x.toml.d" / "50-lab.toml").write_text(LAB)
    found = _load(tmp_path, None)
    assert [fault.denied for fault in found.faults] == [("lab/",)]
    assert _load(tmp_path, "").settings.policy == ()


def test_an_unknown_user_is_allowed_nothing_and_denies_everyone(tmp_path: Path) -> None:
    found = _load(
        tmp_path,
        '[[policy]]\nkeys = "a/"\npublish = "allow"\nusers = ["no-such-user"]\n'
        '[[policy]]\nkeys = "a/"\npublish = "deny"\n'
        '[[policy]]\nkeys = "b/"\npublish = "allow"\nusers = ["no-such-user", 1000]\n'
        '[[policy]]\nkeys = "b/"\npublish = "deny"\n'
        '[[policy]]\nkeys = "c/"\npublish = "deny"\ngroups = ["no-such-group"]\n'
        '[[policy]]\nkeys = "d/"\npublish = "allow"\nsubscribe = "deny"\nusers = ["no-such-user", 1000]\n'
        '[[policy]]\nkeys = "d/"\npublish = "deny"\n',
    )
    assert [_may_publish(found, key) for key in (b"a/", b"b/", b"c/", b"d/", b"e/")] == [False, True, False, True, True]
    assert [_may_publish(found, key, ROOT_USER) for key in (b"a/", b"b/", b"c/", b"d/")] == [False, False, False, False]
    assert [_may_subscribe(found, key, ROOT_USER) for key in (b"a/", b"d/")] == [True, False]
    assert [(each.reason.split(":")[0], each.denied) for each in found.faults] == [
        ("policy.1.users", ()),
        ("policy.3.users", ()),
        ("policy.5.groups", ("c/",)),
        ("policy.6.users", ("d/",)),
    ]
    assert 'unknown user "no-such-user"' in str(found.faults[0])
    assert not any(type(uid) is not int for rule in found.settings.policy for uid in rule.users)


def test_units_that_the_kernel_does_not_report_are_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = """
[[policy]]
keys = "web/"
publish = "allow"
units = ["nginx.service"]
[[policy]]
keys = "web/"
publish = "deny"
[[policy]]
keys = "log/"
publish = "deny"
units = ["bad.service"]
"""
    assert not _load(tmp_path, "", rules).faults
    monkeypatch.setattr("sbus_programs.config.lenient_reader.reports_processes", lambda: False)
    old = _load(tmp_path, "", rules)
    assert [fault.denied for fault in old.faults] == [(), ("log/",)]
    assert all("policy." in fault.reason and "Linux 6.5" in fault.reason for fault in old.faults)
    # The bus knows no unit there.
    assert [_may_publish(old, key) for key in (b"web/x", b"log/x", b"other")] == [False, False, True]


def test_unknown_names_elsewhere_open_nothing_either(tmp_path: Path) -> None:
    text = 'allowed_users = ["no-such-user"]\nadmins = ["no-such-user", 7]\nprotected_users = ["no-such-user"]\n'
    text += '[rights]\ntap = { users = ["no-such-user"], groups = [8, "no-such-group"] }\n'
    text += '[[quotas.overrides]]\nusers = ["no-such-user"]\nconnections = 3\n'
    text += '[[quotas.overrides]]\nusers = ["no-such-user", 9]\nconnections = 4\n'
    for main, drop_in, file in ((text, "", "x.toml"), ("", text, "x.toml.d/50-lab.toml")):
        found = _load(tmp_path, drop_in, main)
        read = found.settings
        # Empty, it would let everyone in.
        assert (read.allowed_users, read.admins, read.protected_users) == ((NO_ID,), (7,), ())
        assert (read.rights.tap.users, read.rights.tap.groups) == ((), (8,))
        assert [(each.users, each.connections) for each in read.quotas.overrides] == [((9,), 4)]
        assert len(found.faults) == 7
        assert {str(fault.file.relative_to(tmp_path)) for fault in found.faults} == {file}


@pytest.mark.parametrize(
    ("broken", "allowed"),
    [
        ("allowed_users = [5]\nx = 1\n", (5,)),
        ("allowed_users = [{}]\n", (NO_ID,)),
        ("allowed_users = [5\n", (NO_ID,)),
        ("# allowed_users\nx =", ()),
    ],
)
def test_a_broken_file_with_allowed_users_admits_no_other_user(tmp_path: Path, broken: str, allowed: tuple[int, ...]) -> None:
    assert _load(tmp_path, broken).settings.allowed_users == allowed


def test_a_main_file_with_a_mistake_is_an_error(tmp_path: Path) -> None:
    for wrong in ("x =", "nonsense = 1", '[[policy]]\nkeys = "a"\n'):
        with pytest.raises(ConfigError):
            _load(tmp_path, "", wrong)


def test_two_files_that_are_wrong_together_are_the_fault_of_the_later(tmp_path: Path) -> None:
    found = _load(tmp_path, 'credential_prefix = "!/cred/1/2/3"\n' + LAB, 'separator = "."\n')
    assert found.settings.credential_prefix == ""
    assert [fault.denied for fault in found.faults] == [("lab/",)]


def test_rules_that_do_not_fit_are_denied_by_fewer(tmp_path: Path) -> None:
    rule = '[[policy]]\nkeys = "{}/{}"\npublish = "deny"\n'
    found = _load(
        tmp_path,
        "".join(rule.format("lab", number) for number in range(10)),
        "".join(rule.format("main", number) for number in range(60)),
    )
    assert [fault.denied for fault in found.faults] == [("lab/",)]
    assert len(found.settings.policy) == 61
    assert "too many policy rules with publish: 70, at most 63" in str(found.faults[0])


def test_a_good_configuration_has_no_faults(tmp_path: Path) -> None:
    found = _load(tmp_path, LAB, "admins = [1]")
    assert found.faults == ()
    assert [file.name for file in found.files] == ["x.toml", "50-lab.toml"]


@given(line=st.text(alphabet="[]{}=\"'\\#\n .,ab*_keysplicy", max_size=30), place=st.integers(0, 9))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_extra_line_opens_what_a_file_closes(tmp_path: Path, line: str, place: int) -> None:
    lines = LAB.splitlines()
    lines.insert(place, line)
    found = _load(tmp_path, "\n".join(lines))
    other_user = Credentials(1, 7, 7)
    if found.faults:
        assert not _may_publish(found, b"lab/x", other_user)
        assert not _may_subscribe(found, b"lab/x", other_user)
        assert all(str(fault).isprintable() for fault in found.faults)


def test_it_is_reported_whether_the_bus_gets_pidfds() -> None:
    own, other = socket.socketpair()
    with own, other:
        pidfd = pidfd_of(own.fileno())
    if pidfd is not None:
        os.close(pidfd)
    before = os.listdir("/proc/self/fd")
    assert reports_processes() is (pidfd is not None)
    assert os.listdir("/proc/self/fd") == before


def test_an_older_kernel_reports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbus_programs.config.lenient_reader._SO_PEERPIDFD", 0x7FFF_FFFF)
    assert not reports_processes()
