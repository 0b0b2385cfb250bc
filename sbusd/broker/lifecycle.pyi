from collections import Counter

from sbusd.broker.access import Acceptance
from sbusd.broker.change_log import ChangeLog
from sbusd.broker.enforcement import Placements
from sbusd.broker.log import BusLog
from sbusd.broker.ownership import BusOwnership
from sbusd.broker.presence import Presence
from sbusd.broker.process_watch import Lifelines
from sbusd.broker.quotas import Accounts
from sbusd.broker.roster import Client, Roster
from sbusd.dataplane.contract import ConnectionCounters, End, Switch

class Reception:
    switch: Switch
    has_change_log: bool
    _ownership: BusOwnership
    _journal: BusLog
    _acceptance: Acceptance
    _roster: Roster
    _accounts: Accounts
    _placements: Placements
    _presence: Presence
    _lifelines: Lifelines
    _change_log: ChangeLog
    _counts: Counter[str]
    def connected(self, connection: int, fd: int) -> None: ...
    def control(self, connection: int, packet: bytes) -> None: ...
    def ended(self, connection: int, end: End, counters: ConnectionCounters) -> None: ...
    def closed(self, connection: int) -> None: ...
    def _place(self, client: Client) -> None: ...
    def _subscribe(self, client: Client, pattern: bytes) -> None: ...
