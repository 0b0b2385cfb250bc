"""Files are merged, checked, and each mistake is one line that names file, key, reason and remedy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_programs.config.documents import Table, read_settings, settings_of
from sbus_programs.config.files import MAX_FILE_BYTES, PACKAGE_FOLDER, ConfigError
from sbus_programs.config.rules import RightsSettings, Subjects
from sbus_programs.config.settings import DaemonSettings, LimitSettings, LogSettings, RateSettings


def _settings(folder: Path, *texts: str | bytes) -> DaemonSettings:
    """Return the settings of files ``0.toml``, ``1.toml`` … that hold *texts*."""
    files = [folder / f"{number}.toml" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_settings(files, DaemonSettings)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert _settings(tmp_path, "# nothing\n") == DaemonSettings()


def test_every_key_can_be_set(tmp_path: Path) -> None:
    text = """
separator = "/"
credential_prefix = "!/cred/1/2/3"
allowed_users = ["root", 1000, "1001"]
admins = [7]
protected_users = [8]
policy = []
[rights]
presence = { users = ["root"] }
tap = { groups = [5] }
block_others = { users = [1], groups = [2] }
vouch = { users = [3] }
deliver = { groups = [4] }
[limits]
queue_packets = 3
queue_bytes = "64MiB"
key_bytes = 100
batch_packets = 1
cache_bytes = "1GiB"
[log]
level = "debug"
rate_per_cause_per_user = { burst = 1, interval = "2min" }
"""
    assert _settings(tmp_path, text) == DaemonSettings(
        credential_prefix="!/cred/1/2/3",
        allowed_users=(0, 1000, 1001),
        admins=(7,),
        protected_users=(8,),
        rights=RightsSettings(Subjects((0,)), Subjects((), (5,)), Subjects((1,), (2,)), Subjects((3,)), Subjects((), (4,))),
        limits=LimitSettings(queue_packets=3, queue_bytes=64 << 20, key_bytes=100, batch_packets=1, cache_bytes=1 << 30),
        log=LogSettings(level="debug", rate_per_cause_per_user=RateSettings(burst=1, interval=120.0)),
    )


def test_the_last_file_decides_each_key(tmp_path: Path) -> None:
    settings = _settings(
        tmp_path,
        "admins = [1, 2]\n[limits]\nqueue_packets = 3\nbatch_packets = 5",
        "admins = [3]\n[limits]\nqueue_packets = 4\n[log.rate_per_cause_per_user]\nburst = 2",
        '[log.rate_per_cause_per_user]\ninterval = "1s"',
    )
    assert settings.admins == (3,)
    assert (settings.limits.queue_packets, settings.limits.batch_packets) == (4, 5)
    assert settings.log.rate_per_cause_per_user == RateSettings(2, 1.0)


def test_lists_of_packages_are_joined() -> None:
    """Two services need the same right; the administrator's files replace the lists of both."""
    packages, own = PACKAGE_FOLDER / "sbusd.toml.d", Path("/etc/sbus/sbusd.toml.d")
    rights: list[tuple[Path, list[int]]] = [
        (packages / "50-link.toml", [1]),
        (packages / "50-store.toml", [2]),
        (packages / "51-more.toml", [1]),
        (own / "60-mine.toml", [3]),
        (packages / "70-late.toml", [4]),
    ]
    expected: list[tuple[int, ...]] = [(1,), (1, 2), (1, 2), (3,), (4,)]
    tables: list[tuple[Path, Table]] = [(file, {"rights": {"vouch": {"users": users}}}) for file, users in rights]
    found = [settings_of(tables[: count + 1], DaemonSettings).rights.vouch.users for count in range(len(tables))]
    assert [tuple(each) for each in found] == expected


def test_a_table_replaces_another_value(tmp_path: Path) -> None:
    assert _settings(tmp_path, "limits = 3", "[limits]\nqueue_packets = 4").limits.queue_packets == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[limit]", "limit: unknown key; did you mean limits?"),
        ("[limits]\nqueue_byte = 1", "limits.queue_byte: unknown key; did you mean queue_bytes?"),
        (
            "xyzzy = 1",
            "xyzzy: unknown key; valid keys are separator, credential_prefix, allowed_users, admins, protected_users, policy,"
            " limits, quotas, log, rights",
        ),
        (
            '[log.rate_per_cause_per_user]\n"a\\nb.c" = 1',
            r'log.rate_per_cause_per_user."a\x0ab.c": unknown key; valid keys are burst, interval',
        ),
        ("x y", "invalid TOML: Expected '=' after a key in a key/value pair (at line 1, column 3)"),
        (b"\n\xff", "invalid UTF-8 in line 2; save the file as UTF-8"),
        ("a = " + "9" * 5_000, "a number has too many digits"),
        ("a=" + "[" * 100_000, "tables are nested too deeply: two levels are enough for every key"),
        ("#" * (MAX_FILE_BYTES + 1), "longer than 262144 bytes, the maximum for a configuration file"),
        ("limits = 3", "limits: must be a table, not 3; write [limits] and its keys below"),
        (
            "[log]\nrate_per_cause_per_user = 1",
            "log.rate_per_cause_per_user: must be a table, not 1; write [log.rate_per_cause_per_user] and its keys below",
        ),
        ('allowed_users = "bob"', 'allowed_users: must be a list, such as ["alice", 1000], not "bob"'),
        ("allowed_users = [1, {}]", "allowed_users.1: must be the name or number of a user, not a table"),
        ('separator = "x"', "separator: must be '/' or '.', not \"x\""),
        ("separator = 3", "separator: must be '/' or '.', not 3"),
        (
            'credential_prefix = "/"',
            'credential_prefix: must be "!/cred/<gid>/<uid>/<pid>", or "" for none, not "/"',
        ),
        (
            'separator = "."\ncredential_prefix = "!/cred/1/2/3"',
            'credential_prefix requires separator = "/": a bus with another separator has no private keys',
        ),
        (
            "[limits]\nqueue_bytes = 1",
            "limits.queue_bytes: must be 1MiB to 16GiB, not 1: the largest packet of another user must fit",
        ),
        (
            "[limits]\nbatch_packets = 0\nqueue_packets = 0\nkey_bytes = 0",
            'limits.queue_packets: must be 1 to 16777216, not 0: each pending packet uses memory; "none" means no limit'
            " (errors in total: 3; also limits.key_bytes: must be 16B to 64KiB, not 0: the cost of a match grows with the depth of the key;"
            " limits.batch_packets: must be 1 to 64, not 0: the bus reads at most 64 packets together)",
        ),
        (
            '[[policy]]\nkeys = "a"\npublsh = "deny"\n[limits]\nkey_bytes = 0\nqueue_byte = 1',
            "policy.1.publsh: unknown key; did you mean publish? (errors in total: 3; also limits.queue_byte: unknown key;"
            " did you mean queue_bytes?; limits.key_bytes: must be 16B to 64KiB, not 0: the cost of a match"
            " grows with the depth of the key)",
        ),
        ('[[policy]]\npublish = "deny"', "policy.1.keys: required key is missing"),
        (
            '[[policy]]\nkey = "a"\npublish = "deny"',
            "policy.1.key: unknown key; did you mean keys? (errors in total: 2; also policy.1.keys: required key is missing)",
        ),
        ('[[policy]]\nkeys = "a"', 'policy.1: the rule decides nothing; set publish or subscribe to "allow" or "deny"'),
        (
            '[[policy]]\nkeys = "a"\npublish = "deny"\n[[policy]]\nkeys = "a*"\npublish = "deny"',
            'policy.2.keys: must be a prefix of keys without a wildcard, such as "lab/", not "a*"',
        ),
        ('[[policy]]\nkeys = "a"\npublish = "no"', "policy.1.publish: must be 'allow' or 'deny', not \"no\""),
        ('[[policy]]\nkeys = "a"\npublish = "deny"\nuser = [1]', "policy.1.user: unknown key; did you mean users?"),
        (
            '[[policy]]\nkeys = "a"\npublish = "deny"\ngroups = [true]',
            "policy.1.groups.0: must be the name or number of a group, not true",
        ),
        ('[[policy]]\norigin = "x"', "policy.1.origin: unknown key; the bus itself sets the origin of a table"),
        ("policy = [1]", "policy.0: must be a table, not 1; write [[policy]] and its keys below"),
        ("[rights]\ntap = 1", "rights.tap: must be a table, not 1; write [rights.tap] and its keys below"),
        ("[rights]\ntap = { uses = [] }", "rights.tap.uses: unknown key; did you mean users?"),
        (
            '[[policy]]\nkeys = "a"\npublish = "deny"\n' * 64,
            "too many policy rules with publish: 64, at most 63; merge some by using groups",
        ),
        ('[[policy]]\nkeys = "a"\nsubscribe = "deny"\n' * 1_001, "too many policy rules: 1001, at most 1000"),
        (
            '[log]\nlevel = "loud"',
            "log.level: must be 'emerg', 'alert', 'crit', 'err', 'warning', 'notice', 'info' or 'debug', not \"loud\"",
        ),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, text: str | bytes, says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        _settings(tmp_path, text)
    assert str(refusal.value) == f"{tmp_path}/0.toml: {says}"


def test_rules_of_later_files_stand_behind_those_of_earlier_ones_and_know_their_place(tmp_path: Path) -> None:
    rule = '[[policy]]\nkeys = "a/{}"\npublish = "deny"\nusers = ["root", 7]\ngroups = ["root"]\n'
    settings = _settings(tmp_path, rule.format(1) + rule.format(2), "admins = [1]", rule.format(3) + 'comment = "no"')
    assert [(each.keys, each.name) for each in settings.policy] == [
        ("a/1", f"rule 1 of {tmp_path}/0.toml"),
        ("a/2", f"rule 2 of {tmp_path}/0.toml"),
        ("a/3", f"rule 1 of {tmp_path}/2.toml: no"),
    ]
    assert {(each.users, each.groups, each.publish, each.subscribe) for each in settings.policy} == {((0, 7), (0,), "deny", None)}


def test_an_invalid_rule_is_named_by_its_file_and_its_number_there(tmp_path: Path) -> None:
    good, wrong = '[[policy]]\nkeys = "a"\npublish = "deny"\n', '[[policy]]\nkeys = 1\npublish = "deny"\n'
    with pytest.raises(ConfigError) as refusal:
        _settings(tmp_path, good * 3, good + wrong)
    assert str(refusal.value).startswith(f"{tmp_path}/1.toml: policy.2.keys: must be a prefix of keys")


def test_an_error_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        _settings(tmp_path, "[limits]\nqueue_packets = 1", "[limits]\nqueue_packets = 0", "[limits]\nbatch_packets = 2")
    assert refusal.value.file == tmp_path / "1.toml"
    assert refusal.value.key == "limits.queue_packets"


def test_an_error_of_two_files_together_names_the_last(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="credential_prefix requires") as refusal:
        _settings(tmp_path, 'separator = "."', 'credential_prefix = "!/cred/1/2/3"')
    assert refusal.value.file == tmp_path / "1.toml"


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a regular file; replace or remove it"):
        read_settings([tmp_path], DaemonSettings)


_TOKENS = [
    "[limits]",
    "[log]",
    "admins",
    "separator",
    "queue_bytes",
    "level",
    "x",
    ".",
    "=",
    '"',
    "{",
    "}",
    "[",
    "]",
    ",",
    "1",
    "true",
    "\n",
    "\\u1",
]


@given(st.lists(st.sampled_from(_TOKENS), max_size=12).map("".join))
def test_any_document_gives_settings_or_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    with contextlib.suppress(ConfigError), _one_line():
        assert isinstance(_settings(tmp_path_factory.getbasetemp(), text), DaemonSettings)


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Check the text of an error that passes."""
    try:
        yield
    except ConfigError as error:
        if not str(error).isprintable():
            raise AssertionError(repr(str(error))) from error
        raise
