from collections import Counter

from sbusd.broker.access import AccessRules, BusOwnership
from sbusd.broker.client_log import ClientLog
from sbusd.broker.durable_state import ChangeLog
from sbusd.broker.events import PresenceEvents
from sbusd.broker.log import BusLog
from sbusd.broker.policy import SwitchRightsCache
from sbusd.broker.process_watch import ProcessBindings, ProcessWatch
from sbusd.broker.quotas import UserQuotas
from sbusd.broker.refusals import Refusals
from sbusd.broker.roster import Client, Roster
from sbusd.broker.units import Units
from sbusd.dataplane.contract import Switch
from sbusd.dataplane.switch import ClientSink
from sbusd.systemd.cgroups import Placement

class FastPath(ClientSink):
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
    _units: Units
    _refusals: Refusals
    _log: ClientLog
    _change_log: ChangeLog
    _counts: Counter[str]
    def _attach(self, switch_used: Switch) -> None: ...
    def _count_answered(self) -> None: ...
    def connected(self, connection: int, fd: int) -> None: ...
    def _locate(self, client: Client) -> None: ...
    def _set_place(self, client: Client, placement: Placement | None) -> None: ...
    def _handle_unknown(self, client: Client) -> None: ...
    def _apply_rights(self, client: Client) -> None: ...
    def _unsubscribe(self, client: Client, pattern: bytes) -> bool: ...
