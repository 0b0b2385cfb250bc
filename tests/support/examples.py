"""How many examples a property test tries: all in ``make test``, and a part of them in ``make check``, for which a contributor waits."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

HUNDREDTHS = {"all": 100, "part": 20}
"""Of its examples that a property test tries, by the profile of Hypothesis, whose default for a test is 100."""

LEAST = 10
"""A test with more than these tries at least this number."""


def use(profile: str) -> None:
    """Let the property tests that are imported from now on try what *profile*, of :data:`HUNDREDTHS`, says."""
    # No test may depend on how fast the machine is, nor on what else it does.
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    settings.register_profile(profile, max_examples=HUNDREDTHS[profile], deadline=None, suppress_health_check=checks)
    settings.load_profile(profile)


def examples(count: int) -> int:
    """Return how many of *count* examples are tried now."""
    return min(count, max(LEAST, count * settings().max_examples // 100))
