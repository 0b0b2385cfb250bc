"""A certificate that other hosts would reject is an error of the check, in each program and for each part that it plays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sbusd.config.certificates import CertificateFiles
from sbusd.config.files import ConfigError
from sbusd.config.identity_check import Identity
from tests.support.authority import Authority, Certificate

pytestmark = pytest.mark.slow

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
