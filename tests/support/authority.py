"""A certificate authority for tests, by openssl(1): certificates of hosts, and invalid ones."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import skips

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a certificate."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        skips.require_program("openssl", "openssl")
        self._folder = folder
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        _openssl("req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.certificate))

    def sign(self, *names: str, addresses: Sequence[str] = (), file: str = "", days: int = 2) -> Certificate:
        """Return a certificate for DNS *names* and IP *addresses*."""
        stem = self._folder / (file or names[0])
        made = Certificate(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        alternatives = ",".join([*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)])
        ask = ("-subj", "/CN=test", "-addext", f"subjectAltName={alternatives}", "-CA", str(self.certificate), "-CAkey", str(self._key))
        _openssl("req", "-x509", *_KEY, "-days", str(days), *ask, "-keyout", str(made.key), "-out", str(made.certificate))
        return made

    def sign_between(self, name: str, begin: str, end: str) -> Certificate:
        """Return a certificate for the DNS *name* that is valid from *begin* to *end*, such as ``20300101000000Z``."""
        stem = self._folder / f"{name}-{begin}"
        made = Certificate(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        request, database, settings = (stem.with_suffix(f".{kind}") for kind in ("csr", "txt", "cnf"))
        database.touch()
        settings.write_text(
            f"[own]\ndatabase={database}\nnew_certs_dir={self._folder}\npolicy=any\ncopy_extensions=copy\nrand_serial=yes\n[any]\nCN=supplied\n"
        )
        ask = ("-subj", "/CN=test", "-addext", f"subjectAltName=DNS:{name}")
        _openssl("req", "-new", *_KEY, *ask, "-keyout", str(made.key), "-out", str(request))
        signer = ("-config", str(settings), "-name", "own", "-cert", str(self.certificate), "-keyfile", str(self._key))
        dates = ("-startdate", begin, "-enddate", end)
        made_of = ("-md", "sha256", "-in", str(request), "-out", str(made.certificate))
        _openssl("ca", "-batch", "-notext", *signer, *dates, *made_of)
        return made

    def settings(self, certificate: Certificate) -> str:
        """Return [tls] of relay.toml."""
        return f'[tls]\ncertificate = "{certificate.certificate}"\nkey = "{certificate.key}"\nauthority = "{self.certificate}"\n'


def _openssl(*words: str) -> None:
    """Run openssl(1)."""
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=30)
