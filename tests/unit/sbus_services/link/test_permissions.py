"""What a host may publish and subscribe to, and the matching of subjects with wildcards."""

from __future__ import annotations

import re

import pytest

from sbus_services.link.permissions import ServerSettings, covers, is_within, published_by, received_by, server_configuration
from sbus_services.link.subjects import Subjects


@pytest.mark.parametrize(
    ("allowed", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a", False),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.*", True),
        ("a.*", "a.>", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b", True),
        ("a.>", "a.*", True),
        ("a.>", "a.>", True),
        ("a.>", "a.b.>", True),
        ("a.>", "a", False),
        ("a.b", "a.*", False),
        ("a.b", "*.b", False),
        ("a.b", ">", False),
        ("*.b", "a.b", True),
        (">", ">", True),
        ("a.*.c", "a.>", False),
        ("a.*.c", "a.b.>", False),
        ("a.*.>", "a.b.>", True),
        ("a.*.>", "a.>", False),
    ],
)
def test_a_subject_covers_another(allowed: str, subject: str, expected: bool) -> None:
    assert covers(allowed, subject) is expected


@pytest.mark.parametrize("subject", ["s.R.m.alpha.a", "s.R.m.alpha.=", "s.R.i.alpha", "s.R.h.alpha", "s.R.x.beta.alpha"])
def test_a_host_publishes_under_its_own_name(subject: str) -> None:
    assert is_within(subject, published_by("R", "alpha"))
    assert not is_within(subject, published_by("R", "beta"))
    assert not is_within(subject, published_by("S", "alpha"))


@pytest.mark.parametrize(
    "subject", ["s.R.m.alpha", "s.R.m.alphabet.a", "s.R.x.alpha.beta", "s.R.x.beta.alpha.more", "s.R.h.alpha.more", "a", ""]
)
def test_everything_else_is_not_published(subject: str) -> None:
    assert not is_within(subject, published_by("R", "alpha"))


def test_only_what_is_for_all_or_for_the_host_itself_is_received() -> None:
    allowed = received_by("R", "alpha")
    for subject in ("s.R.m.*.net.>", "s.R.m.beta.a", "s.R.m.>", "s.R.i.*", "s.R.h.*", "s.R.x.alpha.*", "s.R.x.alpha.beta"):
        assert is_within(subject, allowed), subject
    for subject in (
        "s.R.x.*.*",
        "s.R.x.beta.*",
        "s.R.x.>",
        "s.R.x.*.alpha",
        "s.R.>",
        ">",
        "*.R.m.a",
        "s.*.m.a",
        "s.S.m.a",
        "s.R.x.alpha.>",
    ):
        assert not is_within(subject, allowed), subject


def test_the_protocol_needs_no_other_permissions() -> None:
    subjects = Subjects("R", "alpha")
    published = (subjects.interest, subjects.heartbeat, subjects.direct("beta"), subjects.message(b""), subjects.message(b"a//\xff/" * 40))
    received = (
        *subjects.always,
        *(subjects.wanted(origins, pattern) for origins in (b"beta", b"*") for pattern in (b"", b"a/*/b/", b"a*")),
    )
    assert [each for each in published if not is_within(each, published_by("R", "alpha"))] == []
    assert [each for each in received if not is_within(each, received_by("R", "alpha"))] == []


NKEY = "U" + "A" * 55


def test_each_host_has_its_own_permissions() -> None:
    text = server_configuration(ServerSettings("R", ["alpha", "beta-2"]))
    assert re.findall(r'user: "([^"]+)"', text) == ["alpha", "beta-2"]
    assert 'publish: { allow: ["s.R.m.alpha.>", "s.R.i.alpha", "s.R.h.alpha", "s.R.x.*.alpha"] }' in text
    assert 'subscribe: { allow: ["s.R.m.>", "s.R.i.*", "s.R.h.*", "s.R.x.alpha.*"] }' in text
    assert text.count("s.R.x.*.beta-2") == 1


def test_partitions_are_noticed_within_seconds_and_slow_clients_closed() -> None:
    lines = server_configuration(ServerSettings("R", ["alpha"])).splitlines()
    assert {'ping_interval: "2s"', "ping_max: 2", 'write_deadline: "5s"', "max_payload: 1048576"} <= set(lines)


def test_clients_need_certificates_and_nobody_is_admitted_without_one() -> None:
    text = server_configuration(ServerSettings("R", ["alpha"], certificate="/c", key="/k", authority="/a"))
    assert "verify_and_map: true" in text
    assert 'cert_file: "/c"\n  key_file: "/k"\n  ca_file: "/a"' in text
    settings = [line for line in text.splitlines() if not line.startswith("#")]
    assert not [line for line in settings if "no_auth_user" in line or "leafnodes" in line]


def test_nkeys_replace_the_names_in_certificates() -> None:
    text = server_configuration(ServerSettings("R", ["alpha"], nkeys={"alpha": NKEY}))
    assert f"nkey: {NKEY}, permissions" in text
    assert "verify: true" in text
    assert "verify_and_map" not in text
    assert "user:" not in text


def test_paths_are_quoted() -> None:
    assert r'cert_file: "/a\"b"' in server_configuration(ServerSettings("R", ["alpha"], certificate='/a"b'))


@pytest.mark.parametrize(
    ("realm", "hosts", "listen", "nkeys", "says"),
    [
        ("R S", ["alpha"], "0.0.0.0:4222", {}, "invalid realm 'R S'"),
        ("R", ["a.b"], "0.0.0.0:4222", {}, "invalid host 'a.b'"),
        ("R", ['a"}'], "0.0.0.0:4222", {}, "invalid host"),
        ("R", ["*"], "0.0.0.0:4222", {}, "invalid host"),
        ("R", [">"], "0.0.0.0:4222", {}, "invalid host"),
        ("R", ["a" * 64], "0.0.0.0:4222", {}, "1 to 63"),
        ("R", [""], "0.0.0.0:4222", {}, "invalid host"),
        ("R", [], "0.0.0.0:4222", {}, "no hosts"),
        ("R", ["a", "b", "a"], "0.0.0.0:4222", {}, "repeated host 'a'"),
        ("R", ["Alpha", "alpha"], "0.0.0.0:4222", {}, "differ in more than case"),
        ("R", ["a"], "4222", {}, "invalid address '4222'"),
        ("R", ["a"], "host:0", {}, "invalid address"),
        ("R", ["a"], "host:70000", {}, "invalid address"),
        ("R", ["a"], 'a"b:1', {}, "invalid address"),
        ("R", ["a"], "[::1]:4222", {"a": "SUAX"}, "invalid nkey 'SUAX' of host 'a'"),
        ("R", ["a", "b"], "[::1]:4222", {"a": NKEY}, "nkeys for some hosts only"),
        ("R", ["a"], "[::1]:4222", {"a": NKEY, "c": NKEY}, "nkeys for some hosts only"),
    ],
)
def test_invalid_values_are_refused(realm: str, hosts: list[str], listen: str, nkeys: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        ServerSettings(realm, hosts, listen=listen, nkeys=nkeys)
