"""HTTP requests to a relay, as peers and attackers send them."""

from __future__ import annotations

import http.client
import itertools
import json
import time
from pathlib import Path
from typing import Any

from sbus_services.relay.http.credentials import signed_headers
from tests.support.relays import Host, request

TWIN, PEER, OTHER = 1001, 1002, 1003


class HttpPeer:
    """An HTTP client of a relay: a peer or an attacker."""

    def __init__(self, host: Host) -> None:
        self.host = host
        name, _, port = host.relay.listen.rpartition(":")
        self.address = (name, int(port))

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of the response."""
        status, answer, _ = self.exchange("POST", path, body, headers)
        value: dict[str, Any] = json.loads(answer)
        return status, value

    def exchange(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        """Return the status, the body and the headers of the response."""
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(), dict(response.getheaders())
        finally:
            connection.close()

    def signed(self, key: Path, message: dict[str, Any], path: str = "/zbus-remote", **changes: Any) -> tuple[int, dict[str, Any]]:
        """Post *message*, signed with *key*."""
        body = json.dumps(message).encode()
        return self.post(path, body, self.headers(key, body, path, **changes))

    def headers(
        self, key: Path, body: bytes, path: str = "/zbus-remote", *, twin: int = PEER, to: int = TWIN, now: float = 0.0
    ) -> dict[str, str]:
        """Return the headers that sign *body*."""
        return signed_headers(key.read_bytes().strip(), twin, to, path, body, now=now or time.time())


_NUMBERS = itertools.count(1)


def of_peer(cmd: str = "x", **members: Any) -> dict[str, Any]:
    """Return a request as the peer's relay sends it."""
    return request(cmd, TWIN, uid=f"{TWIN}.{next(_NUMBERS)}", src=PEER) | members


def socket_state(port: int) -> str:
    """Return the state of the local socket that is bound to *port*, as in proc_pid_net(5)."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/self/net", name).read_text("ascii").splitlines()[1:]]
    return next((words[3] for words in lines if words[1].endswith(f":{port:04X}")), "")
