"""The rules by which connections share the time of the loop, with times that the tests choose: rule 4 of the contract."""

from __future__ import annotations

import pytest

from sbusd.dataplane.switch import ScheduleModel
from tests.oracle.turns import Loop, Work

TURN = 1_000_000
MILLISECOND = 1_000_000
HOUR = 3_600_000 * MILLISECOND
ANN, BOB, EVE = 0, 1, 2
"""Users; each has the connection of the same number."""


@pytest.fixture
def model() -> ScheduleModel:
    return ScheduleModel(turn_time=TURN, batch_packets=64)


def serve_at(model: ScheduleModel, user: int, now: int, *, took: int = 0, own: int = 0, is_owner: bool = False) -> None:
    """Serve a connection of *user* from *now* on."""
    model.pass_time(now)
    model.serve(user, user, now=now + took, own=own, is_owner=is_owner)


@pytest.mark.parametrize(
    ("readable", "expected"),
    [
        ((ANN,), 64),
        ((ANN, ANN, ANN, ANN), 64),
        ((ANN, BOB), 64),
        ((ANN, ANN, BOB), 32),
        ((ANN,) * 100 + (BOB,), 1),
        ((BOB, EVE), 64),
    ],
    ids=["alone", "alone with four", "one each", "two of one user", "more connections than packets", "not readable itself"],
)
def test_connections_of_a_user_share_a_batch_while_others_are_readable(
    model: ScheduleModel, readable: tuple[int, ...], expected: int
) -> None:
    model.begin_turn(0, readable=readable)
    assert model.read_limit(ANN, ANN) == expected


def test_readable_connections_are_counted_in_each_turn(model: ScheduleModel) -> None:
    model.begin_turn(0, readable=(ANN, ANN, BOB))
    model.begin_turn(1, readable=(ANN, BOB))
    assert model.read_limit(ANN, ANN) == 64


@pytest.mark.parametrize(
    ("count", "patterns", "own", "expected"),
    [
        (64, TURN, 0, 64),
        (64, 2 * TURN, 0, 32),
        (64, TURN, TURN, 32),
        (8, 0, 4 * TURN, 2),
        (1, 1000 * TURN, 0, 1),
        (0, 2 * TURN, 0, 64),
    ],
    ids=["in time", "patterns", "patterns and own", "few packets", "one packet", "no packet"],
)
def test_costly_connection_is_read_in_smaller_batches(model: ScheduleModel, count: int, patterns: int, own: int, expected: int) -> None:
    model.begin_turn(0, readable=(ANN,))
    model.serve(ANN, ANN, now=10, count=count, patterns=patterns, own=own)
    assert model.read_limit(ANN, ANN) == expected


def test_batches_grow_by_doubling(model: ScheduleModel) -> None:
    model.serve(ANN, ANN, now=10, count=64, own=16 * TURN)
    limits = []
    for _ in range(6):
        limits.append(model.read_limit(ANN, ANN))
        model.serve(ANN, ANN, now=10)
    assert limits == [4, 8, 16, 32, 64, 64]


@pytest.mark.parametrize(
    ("routing", "is_cut_off", "expected"),
    [(10 * TURN + 1, True, 5), (10 * TURN, True, 64), (10 * TURN + 1, False, 64)],
    ids=["too long", "cut off for another reason", "not cut off"],
)
def test_a_batch_shrinks_to_its_routable_messages(model: ScheduleModel, routing: int, is_cut_off: bool, expected: int) -> None:
    model.serve(ANN, ANN, now=10, count=5, routing=routing, is_cut_off=is_cut_off)
    assert model.read_limit(ANN, ANN) == expected


@pytest.mark.parametrize(
    ("took", "penalty"),
    [(TURN, 0), (TURN + 1, 4 * (TURN + 1)), (20 * MILLISECOND, 80 * MILLISECOND), (1000 * MILLISECOND, 100 * MILLISECOND)],
    ids=["in time", "too long", "longer", "at most 100 ms"],
)
def test_connection_that_took_too_long_is_throttled(model: ScheduleModel, took: int, penalty: int) -> None:
    serve_at(model, ANN, 5, took=took)
    end = 5 + took
    assert model.is_throttled(ANN, ANN) is (penalty > 0)
    model.pass_time(end + penalty - 1)
    assert model.is_throttled(ANN, ANN) is (penalty > 0)
    model.pass_time(end + penalty)
    assert not model.is_throttled(ANN, ANN)


@pytest.mark.parametrize(
    ("own", "took", "is_owner", "penalty"),
    [
        (TURN, 10 * TURN, False, 0),
        (2 * TURN, 10 * TURN, False, 8 * TURN),
        (10 * TURN, 2 * TURN, False, 8 * TURN),
        (2 * TURN, 10 * TURN, True, 0),
        (900 * TURN, 900 * TURN, False, 1000 * MILLISECOND),
    ],
    ids=["in time", "by the estimate", "at most by the time taken", "owner of the bus", "at most 1 s"],
)
def test_user_with_costly_packets_is_throttled_with_all_connections(
    model: ScheduleModel, own: int, took: int, is_owner: bool, penalty: int
) -> None:
    other_connection_of_ann = 7
    serve_at(model, ANN, 5, took=took, own=own, is_owner=is_owner)
    model.pass_time(5 + took + penalty - 1)
    assert model.is_throttled(other_connection_of_ann, ANN) is (penalty > 0)
    model.pass_time(5 + took + penalty)
    assert not model.is_throttled(other_connection_of_ann, ANN)
    assert not model.is_throttled(BOB, BOB)


@pytest.mark.parametrize(
    ("own", "pause", "is_owner", "served"),
    [
        (TURN // 2, 0, False, 3),
        (TURN // 10, 0, False, 11),
        (TURN // 10, 2 * TURN // 10, False, 20),
        (9 * TURN // 10, 9 * TURN // 10, False, 2),
        (TURN // 10, 4 * TURN // 10, False, None),
        (TURN, 4 * TURN, False, None),
        (TURN // 2, 0, True, None),
        (0, 0, False, None),
    ],
    ids=[
        "half",
        "a tenth",
        "a third of the time",
        "half of the time",
        "a fifth of the time",
        "a fifth at once",
        "owner of the bus",
        "routing",
    ],
)
def test_small_costs_of_a_user_add_up(model: ScheduleModel, own: int, pause: int, is_owner: bool, served: int | None) -> None:
    """Else many batches, each a little shorter than what throttles a user, would have most of the loop."""
    now = START
    for count in range(1, 1_000):
        connection = count % 8
        model.connect(connection)
        model.pass_time(now)
        now += own or TURN // 2
        model.serve(connection, ANN, now=now, own=own, is_owner=is_owner)
        if model.is_throttled(connection, ANN):
            break
        now += pause
    assert (count if count < 999 else None) == served
    assert not model.is_throttled(BOB, BOB)


@pytest.mark.parametrize(
    ("own", "idle", "expected"),
    [(2 * TURN, MILLISECOND - 1, True), (2 * TURN, MILLISECOND, False), (TURN, MILLISECOND - 1, False)],
    ids=["another user was just here", "it was not", "cheap packets"],
)
def test_costly_connection_waits_while_another_user_is_busy(model: ScheduleModel, own: int, idle: int, expected: bool) -> None:
    start = 1000 * MILLISECOND
    serve_at(model, EVE, start, took=2 * TURN, own=own)
    serve_at(model, BOB, start + 3 * MILLISECOND)
    model.pass_time(start + 3 * MILLISECOND + idle)
    assert model.is_held_back(EVE, EVE) is expected


def test_cheap_connection_of_a_throttled_user_waits_too(model: ScheduleModel) -> None:
    """The packets of many such connections would hold up the other user as long as a costly one."""
    cheap_connection_of_eve = 7
    start = 1000 * MILLISECOND
    model.pass_time(start)
    for part in range(1, 4):
        model.serve(cheap_connection_of_eve, EVE, now=start + part * TURN // 2, own=TURN // 2)
    serve_at(model, BOB, start + 3 * TURN)
    assert model.is_held_back(cheap_connection_of_eve, EVE)
    model.pass_time(start + 3 * TURN + MILLISECOND)
    assert not model.is_held_back(cheap_connection_of_eve, EVE)


def test_costly_connection_does_not_wait_for_its_own_user(model: ScheduleModel) -> None:
    start = 1000 * MILLISECOND
    serve_at(model, EVE, start, took=2 * TURN, own=2 * TURN)
    assert model.is_throttled(EVE, EVE)
    assert not model.is_held_back(EVE, EVE)


def test_a_user_that_comes_again_has_paid_off_what_its_absence_paid(model: ScheduleModel) -> None:
    """Else it would close its connections to be free of it: of being throttled, and of costs that are not enough for that yet."""
    serve_at(model, EVE, START, took=2 * TURN, own=2 * TURN)
    serve_at(model, ANN, START, took=TURN, own=TURN)
    for user in (EVE, ANN):
        model.leave(user)
    model.connect(EVE)
    model.pass_time(START + 10 * TURN - 1)
    assert model.is_throttled(EVE, EVE)
    serve_at(model, ANN, START + 2 * TURN, took=TURN // 2, own=TURN // 2)
    assert model.is_throttled(ANN, ANN)
    for user in (EVE, ANN):
        model.leave(user)
    model.pass_time(START + HOUR)
    assert not model.is_throttled(EVE, EVE)
    serve_at(model, ANN, START + HOUR, took=TURN, own=TURN)
    assert not model.is_throttled(ANN, ANN)


def test_of_too_many_absent_users_the_one_with_least_to_pay_off_is_forgotten(model: ScheduleModel) -> None:
    """Their number is bounded."""
    users = range(400)
    for user in users:
        serve_at(model, user, START, took=2 * TURN + user, own=2 * TURN + user)
    for user in users:
        model.leave(user)
    model.pass_time(START + 3 * TURN)
    new_connection = 500
    assert [user for user in users if model.is_throttled(new_connection, user)] == [*users[-256:]]


def test_long_turn_serves_no_user_twice(model: ScheduleModel) -> None:
    model.begin_turn(0, readable=(ANN, ANN, BOB))
    model.serve(ANN, ANN, now=5 * TURN)
    assert model.must_stop(ANN, 4 * TURN)
    assert not model.must_stop(BOB, 4 * TURN)
    assert not model.must_stop(ANN, 5 * TURN)
    model.begin_turn(6 * TURN, readable=(ANN,))
    assert not model.must_stop(ANN, 4 * TURN)


# -- whole turns


START = HOUR
"""The schedule takes a user of which it knows nothing for one that was served at 0."""


@pytest.fixture
def loop(model: ScheduleModel) -> Loop:
    loop = Loop(model, turn_time=TURN)
    loop.clock.now = START
    return loop


def connect(loop: Loop, user: int, count: int, *work: Work) -> list[int]:
    """Add *count* connections of a user, each with this work, and return their numbers."""
    numbers = list(range(len(loop.workers), len(loop.workers) + count))
    for number in numbers:
        loop.connect(number, user)
        loop.workers[number].work += work
    return numbers


@pytest.mark.parametrize(("connections", "each"), [(1, 64), (8, 8), (64, 1), (100, 1)])
def test_greedy_user_has_one_batch_beside_many_users(loop: Loop, connections: int, each: int) -> None:
    connect(loop, ANN, connections, *[Work()] * 500)
    others = [connect(loop, user, 1, Work(), Work())[0] for user in range(1, 11)]
    done = {service.number: service.packets for service in loop.turn()}
    assert done == dict.fromkeys(range(connections), each) | dict.fromkeys(others, 2)


@pytest.mark.parametrize("cost", [2 * TURN, 9 * TURN // 10, TURN // 4, TURN // 20], ids=["two turns", "just below", "a quarter", "small"])
@pytest.mark.parametrize("connections", [1, 8, 64])
def test_user_with_costly_packets_has_a_fifth_of_the_time_however_many_connections(loop: Loop, connections: int, cost: int) -> None:
    connect(loop, ANN, connections, *[Work(time=cost, own=cost)] * (1_000 * TURN // cost))
    (bob,) = connect(loop, BOB, 1)
    costly = 0
    while loop.clock.now < START + 1_000 * MILLISECOND:
        loop.workers[bob].work.append(Work(time=TURN // 10))
        began = loop.clock.now
        done = loop.turn()
        assert bob in {service.number for service in done}
        assert loop.clock.now <= began + 3 * TURN, "the other connections of the user wait too"
        costly += cost * sum(service.packets for service in done if service.number != bob)
    assert 190 * MILLISECOND <= costly <= 202 * MILLISECOND


@pytest.mark.parametrize("cost", [2 * TURN, TURN // 4])
def test_user_alone_has_all_the_time_and_soon_yields_to_a_newcomer(loop: Loop, cost: int) -> None:
    connect(loop, ANN, 8, *[Work(time=cost, own=cost)] * 500)
    while loop.clock.now < START + 500 * MILLISECOND:
        assert loop.turn(), "it waits while others are away"
    (bob,) = connect(loop, BOB, 1, *[Work(time=TURN // 10)] * 1_000)
    began = loop.clock.now
    while {service.number for service in loop.turn()} <= {bob}:
        assert loop.clock.now < began + 16 * TURN, "it does not wait for as long as it was alone"


@pytest.mark.parametrize(
    ("routing", "packets"),
    [(TURN // 10, [64]), (TURN, [11] * 5 + [9]), (5 * TURN, [3] * 21 + [1]), (20 * TURN, [1] * 64)],
    ids=["not long", "longer than ten turns", "five turns for each packet", "each too long"],
)
def test_long_batch_is_split_over_turns_in_which_others_are_served(loop: Loop, routing: int, packets: list[int]) -> None:
    (ann,) = connect(loop, ANN, 1, *[Work(routing=routing)] * 64)
    (bob,) = connect(loop, BOB, 1)
    done = []
    for _ in packets:
        loop.workers[bob].work.append(Work())
        services = {service.number: service.packets for service in loop.turn()}
        assert services.pop(bob) == 1
        done.append(services[ann])
    assert done == packets
    assert loop.turn() == []


def test_turn_that_was_cut_short_goes_on_with_other_connections(loop: Loop) -> None:
    connect(loop, ANN, 8, *[Work(time=TURN)] * 2)
    turns = []
    while done := loop.turn():
        turns.append([service.number for service in done])
    # After three batches of two packets four times TURN are over.
    assert [len(turn) for turn in turns[:3]] == [3, 3, 2]
    assert sorted(number for turn in turns for number in turn) == list(range(8))


@pytest.mark.parametrize("work", [Work(own=2 * TURN), Work(patterns=9 * TURN), Work(routing=50 * TURN)], ids=["own", "patterns", "routing"])
def test_on_a_clock_that_stands_still_nobody_is_throttled(loop: Loop, work: Work) -> None:
    """Estimates alone make batches smaller: they may be wrong."""
    connect(loop, ANN, 1, *[work] * 100)
    connect(loop, BOB, 1, *[Work()] * 100 * 64)
    for _ in range(37):
        assert [service.number for service in loop.turn()] == [ANN, BOB]


def test_costly_connection_is_held_back_while_the_clock_stands_still(loop: Loop) -> None:
    (eve,) = connect(loop, EVE, 1, *[Work(time=2 * TURN, own=2 * TURN)] * 200)
    (bob,) = connect(loop, BOB, 1, Work())
    assert {service.number for service in loop.turn()} == {eve, bob}
    for _ in range(100):
        assert loop.turn() == []
    loop.clock.now += MILLISECOND
    assert [service.number for service in loop.turn()] == [eve]


@pytest.mark.parametrize(
    ("jump", "is_served"),
    [(99 * MILLISECOND, False), (999 * MILLISECOND, False), (1_000 * MILLISECOND, True), (HOUR, True)],
)
def test_jump_of_the_clock_within_a_batch_throttles_for_a_second_at_most(loop: Loop, jump: int, is_served: bool) -> None:
    """As after the machine was suspended."""
    (ann,) = connect(loop, ANN, 1, *[Work(time=HOUR, own=HOUR)] * 64)
    loop.turn()
    (bob,) = connect(loop, BOB, 1, Work())
    loop.clock.now += jump
    assert {service.number for service in loop.turn()} == ({ann, bob} if is_served else {bob})


def test_jump_of_the_clock_between_turns_leaves_batches_small(loop: Loop) -> None:
    connect(loop, ANN, 1, Work(time=4 * TURN, own=4 * TURN), *[Work()] * 100)
    loop.turn()
    loop.clock.now += HOUR
    assert [loop.turn()[0].packets for _ in range(7)] == [1, 2, 4, 8, 16, 32, 37]
