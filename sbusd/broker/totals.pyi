from collections.abc import Mapping

from sbus.protocol.credentials import Credentials
from sbus_programs.config.users import SubordinateIds
from sbusd.dataplane.counters import UserTraffic

MAX_USERS: int

class UserTotals:
    refused: dict[str, int]
    credentials: Credentials | None
    @property
    def traffic(self) -> UserTraffic: ...
    def add_traffic(self, traffic: UserTraffic) -> None: ...
    def add_refusals(self, quota: str, count: int) -> None: ...

class TotalsTable:
    by_uid: dict[int, UserTotals]
    other: UserTotals
    forgotten: int
    subordinates: SubordinateIds | None
    def of(self, uid: int, present: Mapping[int, object]) -> UserTotals: ...
    def restore(self, uid: int | None, traffic: UserTraffic, refused: Mapping[str, int]) -> None: ...
