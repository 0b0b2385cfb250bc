"""link.toml: valid settings, and one clear line for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbus_programs.config.documents import read_settings
from sbus_programs.config.files import ConfigError
from sbus_programs.config.link import LinkSettings, peer_address
from sbus_programs.config.quantities import NO_BOUND

TLS = '[tls]\ncertificate = "/c"\nkey = "/k"\nauthority = "/a"\n'
DIRECT = 'transport = "direct"\nlisten = "[::]:4223"\n'


def read(folder: Path, text: str) -> LinkSettings:
    """Return the settings in *text*."""
    file = folder / "link.toml"
    file.write_text(text)
    return read_settings([file], LinkSettings)


def test_rules_are_read_by_their_keys(tmp_path: Path) -> None:
    settings = read(
        tmp_path, '[[export]]\nkeys = "net/"\nhosts = ["beta"]\nrate = 5\n[[import]]\nkeys = ""\n[[import]]\nkeys = "a/"\nshared = true\n'
    )
    (export,) = settings.exports
    assert (export.keys, export.hosts, export.rate, export.max_payload, export.origin.number) == ("net/", ("beta",), 5, 409_600, 1)
    assert [(each.keys, each.hosts, each.shared, each.origin.number) for each in settings.imports] == [
        ("", ("*",), False, 1),
        ("a/", ("*",), True, 2),
    ]


def test_rules_of_drop_ins_are_appended(tmp_path: Path) -> None:
    first, second = tmp_path / "link.toml", tmp_path / "50-more.toml"
    first.write_text('[[export]]\nkeys = "net/"\n')
    second.write_text('realm = "R"\n[[export]]\nkeys = "more/"\nrate = "none"\n')
    settings = read_settings([first, second], LinkSettings)
    assert [(each.keys, each.rate, str(each.origin)) for each in settings.exports] == [
        ("net/", NO_BOUND, f"rule 1 of {first}"),
        ("more/", NO_BOUND, f"rule 1 of {second}"),
    ]


def test_direct_connections_have_peers(tmp_path: Path) -> None:
    settings = read(tmp_path, DIRECT + TLS + '[[peers]]\nhost = "beta"\naddress = "beta.example:4223"\n[[peers]]\nhost = "gamma"\n')
    assert [(each.host, peer_address(each.address)) for each in settings.peers] == [("beta", ("beta.example", 4223)), ("gamma", None)]


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.2:1", "10.0.0.2"), ("[fd00::2]:65535", "fd00::2"), ("b-1.example:4223", "b-1.example")],
)
def test_addresses_of_peers(address: str, host: str) -> None:
    found = peer_address(address)
    assert found is not None
    assert found[0] == host


@pytest.mark.parametrize("address", ["beta", "beta:", "beta:0", "beta:65536", ":4223", "a b:1", "fd00::2:1x", "[x]:1", "beta:٣"])
def test_invalid_addresses_of_peers(address: str) -> None:
    assert peer_address(address) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('realm = "a.b"', 'realm: must be 1 to 63 letters, digits, "_" and "-", not "a.b"'),
        (f'host = "{"x" * 64}"', "host: must be 1 to 63 letters"),
        ('transport = "smtp"', "transport: must be 'nats' or 'direct'"),
        ('servers = "tls://x"', "servers: must be a list"),
        ('password_file = "secret"', "must be an absolute path"),
        ('password_file = "/p"\nnkey_file = "/n"', "both set; remove one"),
        ('spool = "2GiB"', "spool: must be 0B to 1GiB"),
        ("max_pending = 10", "max_pending: must be 1MiB to 1GiB"),
        ("state_interval = 0", "state_interval: must be 1 to 3600"),
        ('secret_hosts = ["a b"]', 'must be the name of a host, or "*"'),
        ('listen = "0.0.0.0:4223"', 'listen is for transport = "direct"'),
        ('[[peers]]\nhost = "b"', '[[peers]] is for transport = "direct"'),
        ('[tls]\ncertificate = "/c"', "requires certificate, key and authority"),
        (DIRECT, "[tls] is not set"),
        (DIRECT + TLS, "[[peers]] is not set"),
        ('transport = "direct"\n' + TLS + '[[peers]]\nhost = "b"', "listen is not set"),
        (DIRECT + 'servers = ["tls://x"]\n' + TLS + '[[peers]]\nhost = "b"', 'servers is for transport = "nats"'),
        (DIRECT + 'nkey_file = "/x"\n' + TLS + '[[peers]]\nhost = "b"', 'nkey_file is for transport = "nats"'),
        (DIRECT + TLS + '[[peers]]\nhost = "b"\n[[peers]]\nhost = "b"', 'duplicate [[peers]] with host = "b"'),
        (DIRECT + TLS + '[[peers]]\nhost = "b"\naddress = "b"', "must be a host and a port"),
        ('listen = "x"', "must be an address and port"),
        ("[[export]]\nrate = 1", "export.1.keys: required key is missing"),
        ('[[export]]\nkeys = "net/"\nrate = 0', "export.1.rate: must be 1 to 10000000"),
        ('[[export]]\nkeys = "net/"\nmax_payload = "1MiB"', "export.1.max_payload: must be 0B to 400KiB"),
        ('[[export]]\nkeys = "net/"\nshared = true', "export.1.shared: unknown key; valid keys are keys, hosts, rate, max_payload"),
        ('[[import]]\nkeys = 5', "import.1.keys: must be a pattern of keys"),
        ('[[import]]\nkeys = ""\nshare = true', "import.1.share: unknown key; did you mean shared?"),
        ("[[imports]]\nkeys = 1", "imports: unknown key; did you mean import?"),
        ("import = 5", "import: "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_host_that_connects_to_all_others_need_not_listen(tmp_path: Path) -> None:
    settings = read(tmp_path, 'transport = "direct"\n' + TLS + '[[peers]]\nhost = "b"\naddress = "b.example:4223"')
    assert (settings.listen, settings.peers[0].address) == ("", "b.example:4223")
    with pytest.raises(ConfigError, match=r'listen is not set, and \[\[peers\]\] with host = "b" has no address'):
        read(tmp_path, 'transport = "direct"\n' + TLS + '[[peers]]\nhost = "b"')
