"""Certificates are loaded with a private key that only its owner can read. The tests of relay and link make handshakes."""

from __future__ import annotations

import ssl
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sbusd.config.certificates import CertificateFiles, client_context, dns_names, server_context, validity_of
from sbusd.config.files import ConfigError
from tests.support.authority import Authority

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
