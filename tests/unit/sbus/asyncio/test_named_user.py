"""The user of another service is looked up in a thread."""

from __future__ import annotations

import asyncio
import pwd
import threading

import pytest

from sbus.asyncio.named_user import NamedUser

UID = 4_321


def test_a_user_that_is_added_later_is_found_and_then_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    known: dict[str, pwd.struct_passwd] = {}

    def getpwnam(name: str) -> pwd.struct_passwd:
        assert threading.current_thread() is not threading.main_thread()
        asked.append(name)
        return known[name]

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)

    async def main() -> None:
        user = NamedUser("sbus-of-a-test")
        assert not await user.has_uid(UID)
        known["sbus-of-a-test"] = pwd.struct_passwd(("sbus-of-a-test", "x", UID, 1, "", "/", "/"))
        assert [await user.has_uid(UID), await user.has_uid(UID + 1), await user.has_uid(UID)] == [True, False, True]
        assert len(asked) == 2

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_look_up_that_does_not_end_delays_neither_the_loop_nor_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    first = threading.Event()

    def getpwnam(name: str) -> pwd.struct_passwd:
        if not first.is_set():
            first.set()
            assert answered.wait(60)
        return pwd.struct_passwd((name, "x", UID, 1, "", "/", "/"))

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)

    async def main() -> None:
        user = NamedUser("sbus-of-a-test")
        slow = asyncio.ensure_future(user.has_uid(UID, 1))
        assert await asyncio.to_thread(first.wait, 60)
        assert await user.has_uid(UID, 2)
        assert not slow.done()
        answered.set()
        assert await slow

    asyncio.run(asyncio.wait_for(main(), 60))
