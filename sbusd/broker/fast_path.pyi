from collections import Counter

from sbusd.broker.access import AccessRules
from sbusd.broker.admission import BusOwnership
from sbusd.broker.change_log import ChangeLog
from sbusd.broker.client_log import ClientLog
from sbusd.broker.log import BusLog
from sbusd.broker.presence_events import PresenceEvents
from sbusd.broker.process_watch import ProcessBindings, ProcessWatch
from sbusd.broker.quotas import UserQuotas
from sbusd.broker.refusals import Refusals
from sbusd.broker.roster import Client, Roster
from sbusd.broker.switch_rights import SwitchRightsCache
from sbusd.dataplane.contract import ConnectionCounters, End, Switch

class FastPath:
    switch: Switch
    has_change_log: bool
    _ownership: BusOwnership
    _journal: BusLog
    _access: AccessRules
    _roster: Roster
    _quotas: UserQuotas
    _rights: SwitchRightsCache
    _presence: PresenceEvents
    _bindings: ProcessBindings
    _process_watch: ProcessWatch
    _refusals: Refusals
    _log: ClientLog
    _change_log: ChangeLog
    _counts: Counter[str]
    def connected(self, connection: int, fd: int) -> None: ...
    def control(self, connection: int, packet: bytes) -> None: ...
    def ended(self, connection: int, end: End, counters: ConnectionCounters) -> None: ...
    def closed(self, connection: int) -> None: ...
    def _apply_rights(self, client: Client) -> None: ...
    def _subscribe(self, client: Client, pattern: bytes) -> None: ...
    def _unsubscribe(self, client: Client, pattern: bytes) -> bool: ...
