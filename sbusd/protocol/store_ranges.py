"""The ranges of numbers in calls of sbus-store(8), for clients and for the store. Spec: sbus-store(8), "CALLS"."""

from __future__ import annotations

MAX_DELAY_SECONDS = 366 * 86_400.0
"""The longest delay of a job, lease, or time between two tries: about a year."""

MIN_LEASE_SECONDS = 0.1
"""The shortest lease."""

MIN_EXPIRE_SECONDS = 0.001
MAX_EXPIRE_SECONDS = 100 * MAX_DELAY_SECONDS
"""The time after which a message is removed."""

LATEST_SECONDS = 32_503_680_000.0
"""The year 3000, in seconds since 1970: later times are a mistake."""

MAX_MESSAGES = 256
"""Messages of one response."""

MAX_JOBS = 64
"""Jobs of one call of ``store/take``: their heads always fit into a response."""
