"""The settings of link.toml(5) as rules of the protocol and as a network. Spec: sbus-link(8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from sbus_programs.config.certificates import CertificateFiles
from sbus_programs.config.files import ConfigError
from sbus_programs.config.hosts import split_address
from sbus_programs.config.link import EVERY_HOST, ExportSettings, ImportSettings, LinkSettings, peer_address
from sbus_programs.config.quantities import NO_BOUND
from sbus_services.link.network.direct import DirectNetwork, DirectSettings
from sbus_services.link.network.nats import NatsNetwork, NatsSettings
from sbus_services.link.network.streams import Writable
from sbus_services.link.rules import Export, Import, Rules


def rules_of(settings: LinkSettings, main_file: Path, uid: int) -> Rules:
    """Return the rules of a link that runs as the user *uid*. *main_file* is for errors.

    Raises:
        ConfigError: a required key is missing, or a rule cannot be used.
    """
    for name in ("realm", "host"):
        if not getattr(settings, name):
            raise ConfigError(main_file, name, f"not set; write the name of the {name}")
    return Rules(
        settings.realm,
        settings.host,
        tuple(_export(each, main_file) for each in settings.exports),
        tuple(_import(each, main_file) for each in settings.imports),
        _hosts(settings.secret_hosts),
        b"!/cred//%d//" % uid,
        settings.spool,
    )


def make_network(settings: LinkSettings, main_file: Path, writable: Writable, report: Callable[[str], None]) -> NatsNetwork | DirectNetwork:
    """Return the network of *settings*; *writable* and *report* are its arguments. Raises ConfigError."""
    try:
        if settings.transport == "direct":
            return DirectNetwork(_direct(settings), writable, report)
        return NatsNetwork(_nats(settings), writable, report)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(main_file, "peers" if settings.transport == "direct" else "servers", str(error)) from None


def _export(rule: ExportSettings, main_file: Path) -> Export:
    try:
        return Export(rule.keys.encode(), _hosts(rule.hosts), None if rule.rate == NO_BOUND else rule.rate, rule.max_payload, rule.max_blob)
    except ValueError as error:
        raise ConfigError(Path(rule.origin.file or main_file), f"export.{rule.origin.number}", str(error)) from None


def _import(rule: ImportSettings, main_file: Path) -> Import:
    try:
        return Import(rule.keys.encode(), _hosts(rule.hosts), rule.shared, rule.max_blob)
    except ValueError as error:
        raise ConfigError(Path(rule.origin.file or main_file), f"import.{rule.origin.number}", str(error)) from None


def _hosts(names: Iterable[str]) -> frozenset[str] | None:
    """Return the set of hosts in a list, or None for every host."""
    hosts = frozenset(names)
    return None if EVERY_HOST in hosts else hosts


def _files(settings: LinkSettings) -> CertificateFiles:
    tls = settings.tls
    return CertificateFiles(Path(tls.certificate), Path(tls.key), Path(tls.authority))


def _nats(settings: LinkSettings) -> NatsSettings:
    return NatsSettings(
        settings.host,
        settings.servers,
        _files(settings) if settings.tls.is_on else None,
        Path(settings.password_file) if settings.password_file else None,
        Path(settings.nkey_file) if settings.nkey_file else None,
        settings.max_pending,
    )


def _direct(settings: LinkSettings) -> DirectSettings:
    return DirectSettings(
        settings.realm,
        settings.host,
        split_address(settings.listen) if settings.listen else None,
        {peer.host: peer_address(peer.address) for peer in settings.peers},
        _files(settings),
        settings.max_pending,
    )
