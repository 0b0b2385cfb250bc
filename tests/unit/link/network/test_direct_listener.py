"""Which host a certificate names."""

from __future__ import annotations

import pytest

from sbusd.link.network.direct_listener import peer_named

PEERS = frozenset({"alpha", "beta"})


def _certificate(*names: tuple[str, str]) -> dict[str, object]:
    return {"subject": ((("commonName", "alpha"),),), "subjectAltName": names}


def test_a_certificate_names_one_peer() -> None:
    assert peer_named(_certificate(("DNS", "alpha"), ("DNS", "alpha.example"), ("IP Address", "10.0.0.1")), PEERS) == "alpha"


@pytest.mark.parametrize(
    ("certificate", "says"),
    [
        (None, "names no host"),
        (_certificate(), "names no host"),
        (_certificate(("IP Address", "alpha"), ("email", "alpha")), "names no host"),
        (_certificate(("DNS", "gamma")), "names gamma, which is not one"),
        (_certificate(("DNS", "Alpha")), "names Alpha"),
        (_certificate(("DNS", "*")), r"names \*"),
        (_certificate(("DNS", "alpha"), ("DNS", "beta")), "names alpha, beta"),
    ],
)
def test_other_certificates_are_refused(certificate: dict[str, object] | None, says: str) -> None:
    with pytest.raises(ConnectionError, match=says):
        peer_named(certificate, PEERS)
