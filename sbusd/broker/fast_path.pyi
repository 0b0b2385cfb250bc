from collections import Counter

from sbusd.broker.access import Acceptance
from sbusd.broker.admission import BusOwnership
from sbusd.broker.change_log import Chronicle
from sbusd.broker.log import Journal
from sbusd.broker.presence_events import Presence
from sbusd.broker.process_watch import Lifelines
from sbusd.broker.quotas import Accounts
from sbusd.broker.roster import Client, Roster
from sbusd.broker.switch_rights import Placements
from sbusd.dataplane.contract import ConnectionCounters, End, Switch

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
