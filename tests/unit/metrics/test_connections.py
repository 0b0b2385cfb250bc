"""Who may scrape, and how many connections each user can have."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import threading

import pytest

from sbusd.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbusd.metrics import connections as admission_module
from sbusd.metrics.connections import MAX_CONNECTIONS, MAX_OTHERS, MAX_PER_USER, Admission, user_of
from sbusd.socket_owner import OVERFLOW_UID

SCRAPER, OTHER = 1_000, 1_001

CHARGED = ChargedUsers(SubordinateIds([SubordinateRange(100_000, 65_536, OTHER)]))


def test_root_this_user_and_those_of_the_configuration_may_scrape() -> None:
    admission = Admission(["daemon", "7", "no-such-user"], CHARGED)
    asyncio.run(admission.look_up())
    assert all(map(admission.may_scrape, (0, os.geteuid(), pwd.getpwnam("daemon").pw_uid, 7)))
    assert not any(map(admission.may_scrape, (OTHER, OVERFLOW_UID, None)))


def test_nobody_of_another_namespace_may_scrape_whatever_the_configuration_says() -> None:
    assert not Admission([str(OVERFLOW_UID)], CHARGED).may_scrape(OVERFLOW_UID)


def test_a_user_that_is_added_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "_NAMES_SECONDS", 0.01)
    admission = Admission(["prometheus-of-a-test"], CHARGED)
    asyncio.run(admission.look_up())
    assert not admission.may_scrape(SCRAPER)
    made = pwd.struct_passwd(("prometheus-of-a-test", "x", SCRAPER, 1, "", "/", "/"))
    monkeypatch.setattr(pwd, "getpwnam", lambda _: made)

    async def found() -> None:
        looking_up = asyncio.ensure_future(admission.run())
        while not admission.may_scrape(SCRAPER):
            await asyncio.sleep(0.01)
        looking_up.cancel()

    asyncio.run(asyncio.wait_for(found(), 60))


def test_a_directory_service_that_does_not_respond_delays_no_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = threading.Event(), threading.Event()

    def getpwnam(_name: str) -> pwd.struct_passwd:
        assert threading.current_thread() is not threading.main_thread()
        asked.set()
        assert answered.wait(60)
        return pwd.struct_passwd(("slow", "x", SCRAPER, 1, "", "/", "/"))

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)
    admission = Admission(["slow", "7"], CHARGED)

    async def main() -> None:
        look_up = asyncio.ensure_future(admission.look_up())
        await asyncio.sleep(0)
        assert await asyncio.to_thread(asked.wait, 60)
        assert admission.may_scrape(0)
        assert admission.may_scrape(7)
        assert not admission.may_scrape(SCRAPER)
        answered.set()
        await look_up
        assert admission.may_scrape(SCRAPER)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_limits() -> None:
    admission = Admission([str(SCRAPER)], CHARGED)
    assert admission.enter(OTHER, may_scrape=False)
    assert not admission.enter(OTHER, may_scrape=False), "one connection of a user that may not scrape"
    others = [uid for uid in range(2_000, 2_100) if admission.enter(uid, may_scrape=False)]
    assert len(others) == MAX_OTHERS - 1
    for scraper in (SCRAPER, 0):
        assert sum(admission.enter(scraper, may_scrape=True) for _ in range(100)) == MAX_PER_USER
    assert MAX_PER_USER * 2 == MAX_CONNECTIONS
    assert not admission.enter(7, may_scrape=True)
    admission.leave(OTHER, may_scrape=False)
    admission.leave(SCRAPER, may_scrape=True)
    assert admission.enter(OTHER, may_scrape=False)
    assert admission.enter(7, may_scrape=True)


def test_all_ids_of_a_user_have_the_connections_of_one() -> None:
    admission = Admission([str(SCRAPER)], CHARGED)
    entered = [uid for uid in range(100_000, 100_100) if admission.enter(admission.charged_for(uid), may_scrape=False)]
    assert entered == [100_000]
    assert not admission.enter(admission.charged_for(OTHER), may_scrape=False)
    assert admission.enter(admission.charged_for(2_000), may_scrape=False), "another user is not displaced"
    assert admission.enter(admission.charged_for(None), may_scrape=False)
    admission.leave(OTHER, may_scrape=False)
    assert admission.enter(admission.charged_for(100_001), may_scrape=False)


def test_the_right_is_that_of_the_id_itself() -> None:
    admission = Admission([str(OTHER)], CHARGED)
    assert admission.may_scrape(OTHER)
    assert not admission.may_scrape(100_000)


def test_the_kernel_reports_the_user_of_a_connection() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert user_of(ours) == os.geteuid()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        served, _ = server.accept()
        with served:
            assert user_of(served) == os.geteuid()
    with socket.socket(socket.AF_INET) as closed:
        assert user_of(closed) is None
