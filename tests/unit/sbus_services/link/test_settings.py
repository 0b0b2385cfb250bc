"""Settings of link.toml as rules and networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sbus_programs.config.files import ConfigError
from sbus_programs.config.hosts import TlsSettings
from sbus_programs.config.link import ExportSettings, ImportSettings, LinkPeerSettings, LinkSettings
from sbus_programs.config.rules import Origin
from sbus_services.link.network.direct import DirectNetwork
from sbus_services.link.network.nats import NatsNetwork
from sbus_services.link.rules import Export, Import
from sbus_services.link.settings import make_network, rules_of
from tests.support.authority import Authority, Certificate

MAIN = Path("/etc/sbus/link.toml")
TLS = TlsSettings("/c", "/k", "/a")


async def writable() -> None:
    """The bus takes messages."""


def ignore(_reason: str) -> None:
    """Do not report anything."""


def test_settings_become_rules() -> None:
    settings = LinkSettings(
        "R",
        "alpha",
        spool=10,
        secret_hosts=("*",),
        exports=(ExportSettings("net/"), ExportSettings("private/", ("beta",), 5, 100)),
        imports=(ImportSettings("", ("*", "beta")), ImportSettings("cluster/", ("beta",), shared=True)),
    )
    rules = rules_of(settings, MAIN, 990)
    assert rules.exports == (Export(b"net/"), Export(b"private/", frozenset({"beta"}), 5, 100))
    assert rules.imports == (Import(b""), Import(b"cluster/", frozenset({"beta"}), shared=True))
    assert (rules.realm, rules.host, rules.secret_hosts, rules.secret_head, rules.spool_bytes) == ("R", "alpha", None, b"!/cred//990//", 10)
    assert rules_of(LinkSettings("R", "alpha"), MAIN, 1).secret_hosts == frozenset()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (LinkSettings(host="alpha"), "/etc/sbus/link.toml: realm: not set; write the name of the realm"),
        (LinkSettings("R"), "/etc/sbus/link.toml: host: not set; write the name of the host"),
        (LinkSettings("R", "a", exports=(ExportSettings("rpc/", origin=Origin("/x", 2)),)), "/x: export.2: .* never leave their host"),
        (LinkSettings("R", "a", imports=(ImportSettings("*/", shared=True, origin=Origin("/x", 3)),)), "/x: import.3: .* must be literal"),
    ],
)
def test_rules_that_cannot_be_used_are_an_error(settings: LinkSettings, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        rules_of(settings, MAIN, 1)


def test_settings_become_a_network() -> None:
    nats = LinkSettings("R", "alpha", servers=("tls://nats-1",), tls=TLS)
    assert isinstance(make_network(nats, MAIN, writable, ignore), NatsNetwork)
    direct = LinkSettings("R", "alpha", "direct", listen="[::1]:4223", tls=TLS, peers=(LinkPeerSettings("beta", "beta.example:1"),))
    network = make_network(direct, MAIN, writable, ignore)
    assert isinstance(network, DirectNetwork)
    assert network._settings.listen == ("::1", 4223)
    assert network._settings.peers == {"beta": ("beta.example", 1)}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (LinkSettings("R", "a"), "servers: no servers: name at least one"),
        (LinkSettings("R", "a", servers=("http://x",)), "servers: invalid server 'http://x'"),
        (LinkSettings("R", "a", servers=("tls://x",)), "servers: .* needs certificate, key and authority"),
        (LinkSettings("R", "a", "direct", listen="[::1]:1", tls=TLS, peers=(LinkPeerSettings("A"),)), "peers: .* differ in more than case"),
    ],
)
def test_a_network_that_cannot_be_made_is_an_error(settings: LinkSettings, says: str) -> None:
    with pytest.raises(ConfigError, match=f"/etc/sbus/link.toml: {says}"):
        make_network(settings, MAIN, writable, ignore)


def test_files_that_cannot_be_used_are_found_by_a_check(tmp_path: Path) -> None:
    tls = TlsSettings(*(str(tmp_path / name) for name in ("c", "k", "a")))
    with pytest.raises(ConfigError, match="cannot load certificate"):
        make_network(LinkSettings("R", "a", servers=("tls://x",), tls=tls), MAIN, writable, ignore).check(is_start=False)
    with pytest.raises(ConfigError, match="cannot load certificate"):
        make_network(
            LinkSettings("R", "a", "direct", listen="[::1]:1", tls=tls, peers=(LinkPeerSettings("b"),)), MAIN, writable, ignore
        ).check(is_start=False)


@pytest.mark.parametrize(
    "settings",
    [
        LinkSettings("R", "a", servers=("nats://x",), password_file="/nonexistent/p"),
        LinkSettings("R", "a", servers=("nats://x",), nkey_file="/nonexistent/n"),
    ],
    ids=["password", "nkey"],
)
def test_a_start_does_not_need_a_secret_that_each_attempt_reads(settings: LinkSettings) -> None:
    made = make_network(settings, MAIN, writable, ignore)
    made.check(is_start=True)
    with pytest.raises(ConfigError, match="cannot read it: No such file"):
        made.check(is_start=False)


@pytest.mark.slow
def test_servers_of_nats_decide_about_name_and_authority(tmp_path: Path) -> None:
    authority, foreign = Authority(tmp_path), Authority(tmp_path, "foreign")
    certificate = foreign.sign("other")

    def nats(made: Certificate) -> NatsNetwork | DirectNetwork:
        tls = TlsSettings(str(made.certificate), str(made.key), str(authority.certificate))
        return make_network(LinkSettings("R", "a", servers=("tls://x",), tls=tls), MAIN, writable, ignore)

    for is_start in (True, False):
        nats(certificate).check(is_start=is_start)
        with pytest.raises(ConfigError, match="cannot load certificate with private key"):
            nats(replace(certificate, key=authority.sign("a").key)).check(is_start=is_start)
    for begin, end, fault in (
        ("20200101000000Z", "20210101000000Z", "has expired"),
        ("20400101000000Z", "20410101000000Z", "not yet valid"),
    ):
        made = nats(foreign.sign_between("other", begin, end))
        made.check(is_start=True)
        with pytest.raises(ConfigError, match=rf"{fault} \(it is valid from 20.* UTC to 20.* UTC\); check the clock"):
            made.check(is_start=False)
