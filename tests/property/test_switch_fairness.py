"""The compiled schedule and the model of it serve the same connections on the same clock; every service and every end of a turn must agree.

The clock stands still but for the work of the connections and for the pauses that the test makes. Nothing here sleeps.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sbusd.dataplane.switch import ScheduleModel
from tests.oracle.fairness import MILLISECOND, RECENT, SECOND, Schedule
from tests.oracle.turns import Loop, Service, Work
from tests.support.examples import examples

MOST_CONNECTIONS = 80
START = 1_000 * SECOND
"""The compiled schedule counts from 0, the model from long ago."""

USERS = st.sampled_from([None, 0, 1, 1, 2])
PARTS = st.sampled_from([0, 0, 1, 30, 100, 400, 1_000, 4_000])
"""Of the time of a turn, in hundredths."""

PLACES = st.integers(0, MOST_CONNECTIONS - 1)


class CompiledAndModelled(RuleBasedStateMachine):
    """Each rule does the same to both loops."""

    @initialize(turn_time=st.sampled_from([0, 100_000, 10 * MILLISECOND]), batch_packets=st.sampled_from([1, 4, 64]))
    def begin(self, turn_time: int, batch_packets: int) -> None:
        self.turn_time, self.batch_packets = turn_time, batch_packets
        schedules = [each(turn_time=turn_time, batch_packets=batch_packets) for each in (ScheduleModel, Schedule)]
        self.loops = [Loop(schedule, turn_time=turn_time) for schedule in schedules]
        self.free = list(range(MOST_CONNECTIONS))
        self.pause(START)
        self.sent = self.served = 0

    def number(self, place: int) -> int:
        """Return one of the connections."""
        return list(self.loops[0].workers)[place % len(self.loops[0].workers)]

    def has_connections(self) -> bool:
        """Return whether there is any."""
        return bool(self.loops[0].workers)

    @rule(user=USERS, is_owner=st.booleans(), count=st.sampled_from([1, 1, 2, 8, 64]))
    def connect(self, user: int | None, is_owner: bool, count: int) -> None:
        for _ in range(min(count, len(self.free))):
            number = self.free.pop(0)
            for loop in self.loops:
                loop.connect(number, user, is_owner=is_owner)

    @precondition(has_connections)
    @rule(place=PLACES)
    def disconnect(self, place: int) -> None:
        self.disconnect_one(self.number(place))

    @rule(user=st.sampled_from([0, 1, 2]))
    def come_again(self, user: int) -> None:
        """A user stays throttled for what it has taken if it closes all its connections and comes again."""
        for part in (0, 400):
            for number in [number for number, each in self.loops[0].workers.items() if each.user == user]:
                self.disconnect_one(number)
            self.connect(user, False, 1)
            for time in (0, part, part):
                self.send([len(self.loops[0].workers) - 1], 1, (time, 0, time, 0))
                self.take_turn()

    def disconnect_one(self, number: int) -> None:
        self.served += len(self.loops[0].workers[number].work)
        for loop in self.loops:
            loop.disconnect(number)
        self.free.append(number)

    @precondition(has_connections)
    @rule(place=PLACES, is_blocked=st.booleans())
    def block_or_resume(self, place: int, is_blocked: bool) -> None:
        for loop in self.loops:
            loop.workers[self.number(place)].is_blocked = is_blocked

    @precondition(has_connections)
    @rule(places=st.lists(PLACES, min_size=1, max_size=6), count=st.integers(1, 100), parts=st.tuples(PARTS, PARTS, PARTS, PARTS))
    def send(self, places: list[int], count: int, parts: tuple[int, int, int, int]) -> None:
        work = Work(*(part * self.turn_time // 100 for part in parts))
        for place in places:
            self.sent += count
            for loop in self.loops:
                loop.workers[self.number(place)].work += [work] * count

    @precondition(has_connections)
    @rule(count=st.integers(1, 4))
    def all_send(self, count: int) -> None:
        for loop in self.loops:
            for worker in loop.workers.values():
                worker.work += [Work(self.turn_time // 5, 0, self.turn_time // 50, 0)] * count
        self.sent += count * len(self.loops[0].workers)

    @rule(pause=st.sampled_from([1, 1_000, RECENT - 1, RECENT, 40 * MILLISECOND, 400 * MILLISECOND, 3_600 * SECOND]))
    def pause(self, pause: int) -> None:
        for loop in self.loops:
            loop.clock.now += pause

    @rule(count=st.integers(1, 5))
    def take_turns(self, count: int) -> None:
        for _ in range(count):
            self.take_turn()

    def take_turn(self) -> list[Service]:
        """Let both take a turn, and compare what was done."""
        compiled, modelled = self.loops
        ready = [each for each in modelled.workers.values() if each.work and not each.is_blocked]
        began = modelled.clock.now
        done = compiled.turn()
        assert done == modelled.turn()
        assert compiled.clock == modelled.clock
        assert compiled.workers == modelled.workers
        self.served += sum(each.packets for each in done)
        self.check_shares(done, Counter(each.user for each in ready))
        self.check_end(done, began)
        return done

    def check_shares(self, done: list[Service], readable: Counter[int | None]) -> None:
        """No connection gets more than a batch, nor does a user while another one can be read."""
        assert all(each.packets <= self.batch_packets for each in done)
        if len(readable) + max(0, readable[None] - 1) < 2:
            return
        shares: Counter[int] = Counter()
        for each in done:
            if (user := self.loops[1].workers[each.number].user) is not None:
                shares[user] += each.packets
        assert all(count <= max(self.batch_packets, readable[user]) for user, count in shares.items())

    def check_end(self, done: list[Service], began: int) -> None:
        """A turn that has taken four times ``turn_time`` goes on only with users that it has not served."""
        seen = set()
        end = began
        for each in done:
            user = self.loops[1].workers[each.number].user
            assert end <= began + 4 * self.turn_time or user not in seen
            seen |= {user} - {None}
            end = each.end

    def teardown(self) -> None:
        """All work is done in the end, in as many turns as there are packets at most."""
        if not hasattr(self, "loops"):
            return
        for loop in self.loops:
            for worker in loop.workers.values():
                worker.is_blocked = False
        while self.served < self.sent:
            self.pause(RECENT)  # so that nobody is held back
            assert self.take_turn()


CompiledAndModelled.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=40)
TestCompiledAndModelled = CompiledAndModelled.TestCase
