"""The text formats of Prometheus, written by its own library. Source: https://prometheus.io/docs/specs/om/open_metrics_spec/."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbusd.metrics.definitions import MetricType
from sbusd.metrics.families import Family
from sbusd.protocol.errors import SbusError

if TYPE_CHECKING:
    from prometheus_client.core import Metric as ClientMetric

OPENMETRICS_TYPE = "application/openmetrics-text"

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of the older format, which each version of Prometheus reads."""


class MissingLibraryError(SbusError, ImportError):
    """The library of Prometheus is not installed; the text says how to install it."""

    def __init__(self) -> None:
        super().__init__(
            "the library of Prometheus for Python is not installed; install the package python3-prometheus-client, "
            "or with pip prometheus-client"
        )


def check_library() -> None:
    """Import the library. Raises MissingLibraryError if there is none."""
    try:
        import prometheus_client.openmetrics.exposition  # noqa: F401, PLC0415 - optional, and slow to import
    except ImportError:
        raise MissingLibraryError from None


def openmetrics(families: Iterable[Family]) -> bytes:
    """Return the text in the format OpenMetrics. Raises MissingLibraryError."""
    check_library()
    from prometheus_client.openmetrics.exposition import generate_latest  # noqa: PLC0415 - as above

    text: bytes = generate_latest(_Collected(families))  # type: ignore[no-untyped-call]  # older versions of the library have no types
    return text


def prometheus_text(families: Iterable[Family]) -> bytes:
    """Return the text in the format of Prometheus, version 0.0.4. Raises MissingLibraryError."""
    check_library()
    from prometheus_client.exposition import generate_latest  # noqa: PLC0415 - as above

    text: bytes = generate_latest(_Collected(families))
    return text


def negotiated(accept: str, families: Iterable[Family]) -> tuple[bytes, str]:
    """Return the text in the format that the header *accept* of a request wants, and its media type. Raises MissingLibraryError."""
    check_library()
    from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST  # noqa: PLC0415 - as above

    wanted = {each.partition(";")[0].strip() for each in accept.split(",")}
    if OPENMETRICS_TYPE in wanted:
        return openmetrics(families), str(CONTENT_TYPE_LATEST)
    return prometheus_text(families), TEXT_TYPE


@dataclass(frozen=True, slots=True)
class _Collected:
    """What the library writes: it asks a registry of collectors, and needs only this method of it."""

    families: Iterable[Family]

    def collect(self) -> Iterator[ClientMetric]:
        """Yield the metrics as objects of the library."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily  # noqa: PLC0415 - as above

        for family in self.families:
            metric = family.metric
            if metric.kind is MetricType.INFO:
                info = InfoMetricFamily(metric.family, metric.help)
                for values, _ in family.samples:
                    info.add_metric((), dict(zip(metric.labels, values, strict=True)))
                yield info
                continue
            make = CounterMetricFamily if metric.kind is MetricType.COUNTER else GaugeMetricFamily
            made = make(metric.family, metric.help, labels=metric.labels)
            for values, value in family.samples:
                made.add_metric(values, value)
            yield made
