from collections import Counter

from sbusd.daemon.acceptance import Acceptance
from sbusd.daemon.chronicle import Chronicle
from sbusd.daemon.contract import ConnectionCounters, End, Switch
from sbusd.daemon.journal import Journal
from sbusd.daemon.lifelines import Lifelines
from sbusd.daemon.ownership import BusOwnership
from sbusd.daemon.placement import Placements
from sbusd.daemon.presence import Presence
from sbusd.daemon.quotas import Accounts
from sbusd.daemon.roster import Client, Roster

class Reception:
    switch: Switch
    has_chronicle: bool
    _ownership: BusOwnership
    _journal: Journal
    _acceptance: Acceptance
    _roster: Roster
    _accounts: Accounts
    _placements: Placements
    _presence: Presence
    _lifelines: Lifelines
    _chronicle: Chronicle
    _counts: Counter[str]
    def connected(self, connection: int, fd: int) -> None: ...
    def control(self, connection: int, packet: bytes) -> None: ...
    def ended(self, connection: int, end: End, counters: ConnectionCounters) -> None: ...
    def closed(self, connection: int) -> None: ...
    def _place(self, client: Client) -> None: ...
    def _subscribe(self, client: Client, pattern: bytes) -> None: ...
