"""What a link counts, by host and in all. Every discarded message and every rejected frame is in one of these."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class HostCounters:
    """The traffic with one host, and its errors."""

    frames: int = 0
    messages: int = 0
    bytes: int = 0
    lost: int = 0
    """Messages that were numbered and did not arrive."""
    unknown_losses: int = 0
    duplicates: int = 0
    """Messages that came again, by overlapping subscriptions, or too late: these are reported as lost, before or after."""
    malformed: int = 0
    other_version: int = 0
    """Frames of another version of sbus-link."""
    namesakes: int = 0
    """Heartbeats of another host with the same name."""
    ignored: int = 0
    """Messages of an earlier run, or of another host with the same name."""
    stale: int = 0
    """Frames of an earlier run of that host, and those without messages that came after later ones."""
    refused_by_import: int = 0
    too_long: int = 0
    refused_secrets: int = 0
    lost_secrets: int = 0
    lines_refused: int = 0
    changes_refused: int = 0
    """Frames of interest that came too fast, or in the wrong order."""
    lines_refused_there: int = 0
    restarts: int = 0
    silences: int = 0
    """How often three heartbeats in a row were missing."""
    rejoins: int = 0


@dataclass(slots=True)
class LinkCounters:
    """What the link did as a whole, and its hosts."""

    messages: int = 0
    frames: int = 0
    bytes: int = 0
    not_exported: int = 0
    """Messages that no rule lets out."""
    not_wanted: int = 0
    too_long: int = 0
    over_rate: int = 0
    without_sender: int = 0
    """Messages whose sender other hosts would not accept; they are lost for them."""
    refused_secrets: int = 0
    spooled: int = 0
    spool_dropped: int = 0
    """Messages dropped because the spool was full."""
    bus_losses: int = 0
    bus_restarts: int = 0
    connections: int = 0
    rejected: int = 0
    """What the network rejected, such as a subject without permission."""
    foreign_subjects: int = 0
    namesakes: int = 0
    """Heartbeats of another host with the name of this one."""
    hosts_refused: int = 0
    """Frames of hosts beyond the bound, or of hosts that no rule names."""
    patterns_refused: int = 0
    """Patterns of local clients beyond the bounds, and those that made room for patterns of other users."""
    flows_cut: int = 0
    """Flows that ended before their last number was reported often enough."""
    hosts: dict[str, HostCounters] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Return all counters as an object for JSON."""
        return asdict(self)
