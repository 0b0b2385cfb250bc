"""Settings of link.toml as rules and networks."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.config.files import ConfigError
from sbusd.config.hosts import TlsSettings
from sbusd.config.link import ExportSettings, ImportSettings, LinkPeerSettings, LinkSettings
from sbusd.config.rules import Origin
from sbusd.link.network.direct import DirectNetwork
from sbusd.link.network.nats import NatsNetwork
from sbusd.link.rules import Export, Import
from sbusd.link.settings import make_network, rules_of

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
        make_network(LinkSettings("R", "a", servers=("tls://x",), tls=tls), MAIN, writable, ignore).check()
    with pytest.raises(ConfigError, match="cannot load certificate"):
        make_network(
            LinkSettings("R", "a", "direct", listen="[::1]:1", tls=tls, peers=(LinkPeerSettings("b"),)), MAIN, writable, ignore
        ).check()
    with pytest.raises(ConfigError, match="cannot read it: No such file"):
        make_network(LinkSettings("R", "a", servers=("nats://x",), password_file=str(tmp_path / "p")), MAIN, writable, ignore).check()
