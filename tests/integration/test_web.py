"""The program sbus-web: its options, its link, and who may use it. test_web_sessions.py: what sessions do."""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sbus_services.web.logins import MAX_FAILURES
from tests.support.daemons import Daemon
from tests.support.relays import wait_for
from tests.support.users import User
from tests.support.web_gateway import ENV, Browser, Gateway

OTHER_SITE = "http://evil.example"


SHARES_BUS = True


@pytest.fixture
def gateway(bus: Daemon, tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path, bus.path) as made:
        yield made


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sbus_services.web.main", *options]
    return subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=60)


async def opened(browser: Browser, **headers: str | None) -> int:
    """Try to open a session with changed headers; return the status."""
    changed = {**browser.headers, **headers}
    async with aiohttp.ClientSession() as client:
        try:
            url = f"{browser.url}/session"
            async with client.ws_connect(url, headers={name: value for name, value in changed.items() if value is not None}):
                return 101
        except aiohttp.WSServerHandshakeError as error:
            return error.status


# The link


def test_a_link_works_once_and_leaves_secrets_that_scripts_cannot_read(gateway: Gateway) -> None:
    async def use() -> None:
        link = gateway.take_link()
        browser = await gateway.login()
        attributes = {part.strip() for part in browser.set_cookie.split(";")[1:]}
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= attributes
        status, text, headers = await browser.get("/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "<title>sbus</title>" in text
        token = link.partition("?token=")[2]
        assert len(token) >= 43
        assert (await browser.get(f"/?token={token}"))[0] == 403
        other = await gateway.login()
        assert len({token, browser.key, other.key, browser.cookie, other.cookie}) == 5
        for each in (browser, other):
            assert await opened(each) == 101

    asyncio.run(use())
    assert "a browser has used the link; logins: 2" in gateway.log


def test_nothing_is_served_without_a_login(gateway: Gateway) -> None:
    async def use() -> None:
        browser = await gateway.login()
        paths = ["/", "/page.css", "/main.js", "/icon.svg", "/none", "/session", "/%2e%2e/main.py"]
        for cookie in ("", f"{browser.cookie_name}=wrong", f"{browser.cookie_name}={browser.key}"):
            answers = [await browser.get(path, Cookie=cookie, Origin=gateway.url) for path in paths]
            assert [status for status, _, _ in answers] == [401] * len(paths)
            assert len({text for _, text, _ in answers}) == 1
        assert [(await browser.get(path))[0] for path in paths] == [200, 200, 200, 200, 404, 403, 404]

    asyncio.run(use())


def test_every_response_forbids_foreign_content(gateway: Gateway) -> None:
    async def use() -> None:
        browser = await gateway.login()
        for path, headers in (("/", {}), ("/none", {}), ("/", {"Cookie": ""}), ("/", {"Host": "x"}), ("/?token=x", {})):
            _, _, found = await browser.get(path, **headers)
            policy = {
                name: value for name, _, value in (part.strip().partition(" ") for part in found["Content-Security-Policy"].split(";"))
            }
            assert policy["default-src"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == "'self'"
            assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
            assert (found["X-Content-Type-Options"], found["Cache-Control"]) == ("nosniff", "no-store")
            assert found["Referrer-Policy"] == "no-referrer"

    asyncio.run(use())


def test_guesses_of_the_token_are_limited_and_counted(gateway: Gateway) -> None:
    async def use() -> None:
        browser = await gateway.login()
        statuses = [(await browser.get(f"/?token=guess{number}"))[0] for number in range(MAX_FAILURES + 2)]
        assert statuses == [403] * MAX_FAILURES + [429] * 2
        token = gateway.take_link().partition("?")[2]
        assert (await browser.get(f"/?{token}"))[0] == 429  # not compared
        # Browsers that are logged in go on.
        assert (await browser.get("/"))[0] == 200
        assert await opened(browser) == 101

    asyncio.run(use())
    assert "rejected a link with a wrong token" in gateway.log


# Other sites, and other users


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.2:{port}", "localhost:1", "[::1]:{port}"])
def test_a_name_that_only_points_here_is_refused(gateway: Gateway, host: str) -> None:
    """As in DNS rebinding: the page of another site then has this host name, and the browser takes it for the same site."""

    async def use() -> None:
        browser = await gateway.login()
        name = host.format(port=gateway.host.rpartition(":")[2])
        assert (await browser.get("/", Host=name))[0] == 403
        assert await opened(browser, Host=name, Origin=f"http://{name}") == 403

    asyncio.run(use())


def test_localhost_is_the_same_gateway(gateway: Gateway) -> None:
    async def use() -> None:
        browser = await gateway.login()
        name = f"localhost:{gateway.host.rpartition(':')[2]}"
        assert (await browser.get("/", Host=name))[0] == 200
        assert await opened(browser, Host=name, Origin=f"http://{name}") == 101

    asyncio.run(use())


def test_a_websocket_of_another_site_or_port_is_refused(gateway: Gateway) -> None:
    async def use() -> None:
        browser = await gateway.login()
        for origin in (OTHER_SITE, "null", "http://127.0.0.1:1", gateway.url.replace("http:", "https:"), f"{gateway.url}.evil.example"):
            assert await opened(browser, Origin=origin) == 403
            assert (await browser.get("/", Origin=origin))[0] == 403
        assert await opened(browser, Origin=None) == 403
        assert await opened(browser) == 101

    asyncio.run(use())


def test_a_cookie_that_another_port_has_got_opens_no_session(gateway: Gateway) -> None:
    """Browsers send cookies to all ports of an address, and any user can listen on one."""

    async def use() -> None:
        browser, other = await gateway.login(), await gateway.login()
        protocols = [
            "sbus-web",
            "sbus-web, key.",
            f"sbus-web, key.{other.key}",
            f"sbus-web, key.x, key.{browser.key}",
            f"key.{browser.key}",
        ]
        statuses = [await opened(browser, **{"Sec-WebSocket-Protocol": protocol}) for protocol in protocols]
        assert statuses == [403, 403, 403, 403, 400]

    asyncio.run(use())


def test_other_users_of_the_machine_are_not_served(gateway: Gateway, first_user: User) -> None:
    host, port = gateway.host.split(":")
    token = gateway.take_link()

    def try_it() -> str:
        with socket.create_connection((host, int(port)), timeout=30) as client:
            try:
                client.sendall(f"GET {token.removeprefix(gateway.url)} HTTP/1.1\r\nHost: {gateway.host}\r\n\r\n".encode())
                return client.recv(100).decode()
            except ConnectionError:
                return ""

    assert first_user.call(try_it) == ""
    assert f"closed a connection of user {first_user.uid}" in gateway.log
    asyncio.run(gateway.login())  # the link has not been used


def test_other_users_cannot_use_up_the_connections(gateway: Gateway, first_user: User) -> None:
    host, port = gateway.host.split(":")

    def occupy() -> int:
        clients = [socket.create_connection((host, int(port)), timeout=30) for _ in range(400)]
        return sum(client.recv(1) == b"" for client in clients)

    assert first_user.call(occupy, 120) == 400
    asyncio.run(gateway.login())


def test_idle_connections_are_limited(gateway: Gateway) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    host, port = gateway.host.split(":")
    clients = [socket.create_connection((host, int(port)), timeout=60) for _ in range(257)]
    try:
        assert clients[-1].recv(1) == b""
        assert "there are already 256" in gateway.log
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("request_line", ["POST / HTTP/1.1", "PUT /session HTTP/1.1", "OPTIONS / HTTP/1.1"])
def test_methods_that_change_something_are_refused(gateway: Gateway, request_line: str) -> None:
    connection = http.client.HTTPConnection(gateway.host, timeout=60)
    method, path, _ = request_line.split()
    connection.request(method, path, headers={"Origin": gateway.url})
    assert connection.getresponse().status in {403, 405}
    connection.close()


def test_what_is_not_http_gets_one_line_and_no_traceback(gateway: Gateway) -> None:
    host, port = gateway.host.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(b"\x16\x03\x01\x02\x00\r\n\r\n")
        assert client.recv(4_096).startswith(b"HTTP/1.")
    wait_for(lambda: "rejected a request" in gateway.log, "the record of the invalid request")


# The program


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--listen", "0.0.0.0:0"], "'0.0.0.0' is not a loopback address"),
        (["--listen", "[::]:0"], "'[::]' is not a loopback address"),
        (["--listen", "example.org:80"], "'example.org' is not a loopback address"),
        (["--listen", "8080"], "'8080' is not HOST:PORT"),
        (["--listen", "::1:80"], "an IPv6 address is in brackets"),
        (["--listen", "127.0.0.1:65536"], "is not HOST:PORT"),
        (["--allow", "a*b/"], "pattern 'a*b/' matches no key"),
        (["--allow-publish", "!/cred/"], "pattern '!/cred/' matches no key"),
        (["--allow-publish", "a", "--read-only"], "mutually exclusive"),
        (["--system", "--user"], "mutually exclusive"),
        (["--queue-size", "1"], "--queue-size: must be 1KiB to 64MiB"),
        (["--max-sessions", "0"], "must be at least 1"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options: list[str], says: str) -> None:
    done = run(*options)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


def test_an_address_in_use_is_reported(gateway: Gateway) -> None:
    done = run("--listen", gateway.host)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"sbus-web: cannot listen on {gateway.host}: ")
    assert done.stderr.count("\n") == 1


def test_ipv6_and_a_fixed_port(bus: Daemon, tmp_path: Path) -> None:
    async def use(gateway: Gateway) -> None:
        browser = await gateway.login()
        assert (await browser.get("/"))[0] == 200
        async with browser.session() as page:
            assert (await page.ask("stats"))["type"] == "result"

    with Gateway(tmp_path, bus.path, "--listen", "[::1]:0") as gateway:
        assert gateway.url.startswith("http://[::1]:")
        asyncio.run(use(gateway))


def test_a_link_in_a_file_is_for_its_owner_alone(bus: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "url"
    command = [sys.executable, "-m", "sbus_services.web.main", "--address", bus.path, "--url-file", str(file)]
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            wait_for(file.exists, "the file with the link")
            first = file.read_text().strip()
            assert file.stat().st_mode & 0o777 == 0o600
            with_token = http.client.HTTPConnection(first.split("/")[2], timeout=60)
            with_token.request("GET", first[first.index("/?") :])
            assert with_token.getresponse().status == 303
            with_token.close()
            wait_for(lambda: file.read_text().strip() != first, "the next link")
            assert [path.name for path in tmp_path.iterdir() if "url" in path.name] == ["url"]
        finally:
            process.terminate()
        said, errors = process.communicate(timeout=60)
    assert said == b""
    assert b"token=" not in errors
    done = run("--url-file", str(tmp_path / "none" / "url"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_secrets_are_not_logged(gateway: Gateway) -> None:
    async def use() -> Any:
        token = gateway.take_link().partition("token=")[2]
        browser = await gateway.login()
        await browser.get(f"/?token={token}")
        await opened(browser, **{"Sec-WebSocket-Protocol": f"sbus-web, key.x{browser.key}"})
        return token, browser.key, browser.cookie.partition("=")[2]

    secrets = asyncio.run(use())
    assert not [secret for secret in secrets if secret in gateway.log]
    assert json.dumps(gateway.log)
