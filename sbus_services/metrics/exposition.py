"""The text formats of Prometheus, written by its own library. Source: https://prometheus.io/docs/specs/om/open_metrics_spec/."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_services.metrics.definitions import MetricType
from sbus_services.metrics.families import Family

if TYPE_CHECKING:
    from prometheus_client.core import Metric as ClientMetric

SUFFIX = ".prom"
"""node_exporter reads only files whose names end so."""

MODE = 0o644
"""Mode of the file: node_exporter is another user."""


class TextFileError(SbusError, ValueError):
    """The file cannot be one of node_exporter; the text is one line."""


def check_name(path: Path) -> None:
    """Raise TextFileError unless node_exporter would read a file of this name."""
    if path.suffix != SUFFIX:
        raise TextFileError(f"{printable(str(path))}: node_exporter reads only files whose names end with {SUFFIX}")


def replace(path: Path, content: bytes) -> None:
    """Replace *path* by a file with *content* and the mode 0644. Raises OSError, then *path* is as it was."""
    try:
        # The name has another suffix, so that node_exporter does not read a part of it.
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), MODE)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


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
