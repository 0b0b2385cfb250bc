"""The two faces have the same methods, in the same order, with the same arguments."""

from __future__ import annotations

import inspect

import pytest

import sbusd.client
from sbusd.client import AsyncBus, AsyncPresence, AsyncSubscription, AsyncTap, Bus, Presence, Subscription, Tap

TWINS = [(Bus, AsyncBus), (Subscription, AsyncSubscription), (Presence, AsyncPresence), (Tap, AsyncTap)]


def public(face: type) -> list[str]:
    return [name for name in vars(face) if not name.startswith("_")]


@pytest.mark.parametrize(("blocking", "asynchronous"), TWINS)
def test_same_names_in_the_same_order(blocking: type, asynchronous: type) -> None:
    assert public(blocking) == public(asynchronous)


METHODS = [(one, other, name) for one, other in TWINS for name in public(one) if callable(getattr(one, name))]


@pytest.mark.parametrize(("blocking", "asynchronous", "name"), METHODS)
def test_same_arguments(blocking: type, asynchronous: type, name: str) -> None:
    one, other = inspect.signature(getattr(blocking, name)), inspect.signature(getattr(asynchronous, name))
    assert list(one.parameters.values()) == list(other.parameters.values())
    assert one.return_annotation in {other.return_annotation, other.return_annotation.removeprefix("Async")}


def test_what_is_exported_is_there() -> None:
    assert sorted(sbusd.client.__all__, key=str) == sorted(set(sbusd.client.__all__))
    for name in sbusd.client.__all__:
        assert getattr(sbusd.client, name) is not None
