"""Certificates are loaded with a private key that only its owner can read. The tests of relay and link make handshakes."""

from __future__ import annotations

import ssl
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sbus_programs.config.certificates import CertificateFiles, Identity, client_context, dns_names, server_context, validity_of
from sbus_programs.config.files import ConfigError
from tests.support.authority import Authority, Certificate

pytestmark = pytest.mark.slow


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    authority = Authority(tmp_path)
    signed = authority.sign("alpha")
    return CertificateFiles(signed.certificate, signed.key, authority.certificate)


def test_both_sides_require_a_certificate(files: CertificateFiles) -> None:
    server, client = server_context(files, "daemon"), client_context(files, "daemon")
    assert server.verify_mode == client.verify_mode == ssl.CERT_REQUIRED
    assert client.check_hostname
    assert min(server.minimum_version, client.minimum_version) == ssl.TLSVersion.TLSv1_2


def test_a_key_that_others_can_read_is_refused(files: CertificateFiles) -> None:
    files.key.chmod(0o644)
    with pytest.raises(ConfigError, match="accessible to other users: mode 0644"):
        client_context(files, "daemon")


@pytest.mark.parametrize("field", ["certificate", "key", "authority"])
def test_a_missing_file_is_named(files: CertificateFiles, tmp_path: Path, field: str) -> None:
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        server_context(replace(files, **{field: tmp_path / "missing.pem"}), "daemon")


@pytest.mark.parametrize("days", [1, 20_000], ids=["this century", "after 2050"])
def test_the_validity_is_that_of_the_certificate(tmp_path: Path, days: int) -> None:
    authority = Authority(tmp_path)
    before = time.time()
    made = authority.sign("alpha", days=days)
    (tmp_path / "chain.pem").write_text("words\n" + made.certificate.read_text() + authority.certificate.read_text())
    found = validity_of(tmp_path / "chain.pem")
    assert found is not None
    assert int(before) <= found[0] <= time.time()
    assert found[1] - found[0] == days * 86_400


@pytest.mark.parametrize("cut", range(0, 400, 40))
def test_a_damaged_certificate_has_no_validity(tmp_path: Path, files: CertificateFiles, cut: int) -> None:
    text = files.certificate.read_text()
    files.certificate.write_text(text[: 30 + cut] + text[-27:])
    assert validity_of(files.certificate) is None or cut > 200
    assert validity_of(tmp_path / "missing") is None


def test_dns_names_are_those_of_the_certificate() -> None:
    assert dns_names({"subjectAltName": (("DNS", "a"), ("IP Address", "b"), ("DNS", "c"))}) == {"a", "c"}
    assert dns_names({}) == set()


PARTS = {"both": (True, True), "client": (True, False), "server": (False, True)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def good(authority: Authority) -> CertificateFiles:
    return _files(authority.sign("alpha"), authority)


@pytest.fixture(scope="module")
def wrong(folder: Path, authority: Authority, good: CertificateFiles) -> dict[str, CertificateFiles]:
    """Return files with one fault each."""
    foreign, early, late = Authority(folder, "foreign"), ("20400101000000Z", "20410101000000Z"), ("20200101000000Z", "20210101000000Z")
    other = authority.sign("beta")
    return {
        "expired": _files(authority.sign_between("alpha", *late), authority),
        "early": _files(authority.sign_between("alpha", *early), authority),
        "foreign": replace(good, authority=foreign.certificate),
        "name": _files(other, authority),
        "key": replace(good, key=other.key),
    }


def _files(signed: Certificate, authority: Authority) -> CertificateFiles:
    return CertificateFiles(signed.certificate, signed.key, authority.certificate)


def _check(files: CertificateFiles, part: str, *, is_start: bool = False) -> None:
    as_client, as_server = PARTS[part]
    Identity(files, "alpha", "daemon", as_client=as_client, as_server=as_server).check(is_start=is_start)


@pytest.mark.parametrize("part", PARTS)
def test_a_certificate_that_hosts_accept_is_valid(good: CertificateFiles, part: str) -> None:
    _check(good, part)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("expired", r"has expired \(it is valid from 2020-01-01 .* to 2021-01-01 00:00:00 UTC\); check the clock, or renew"),
        ("early", r"not yet valid \(it is valid from 2040-01-01 00:00:00 UTC to .*\); check the clock, or renew"),
        ("foreign", r"not signed by an authority in .*/foreign\.pem: .*; use a certificate of that authority"),
        ("name", "names beta, not this host; make one for DNS:alpha"),
        ("key", "cannot load certificate with private key .*/beta.key"),
    ],
)
def test_a_certificate_that_hosts_reject_is_an_error(wrong: dict[str, CertificateFiles], part: str, fault: str, says: str) -> None:
    files = wrong[fault]
    with pytest.raises(ConfigError, match=f"^{files.certificate}: .*{says}"):
        _check(files, part)


@pytest.mark.parametrize("part", PARTS)
def test_a_start_ignores_dates_and_authority_only(wrong: dict[str, CertificateFiles], part: str) -> None:
    for fault in ("expired", "early", "foreign"):
        _check(wrong[fault], part, is_start=True)
    for fault in ("name", "key"):
        with pytest.raises(ConfigError):
            _check(wrong[fault], part, is_start=True)
