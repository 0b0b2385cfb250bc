"""What can be wrong with a use of the Data Source."""

from __future__ import annotations

from sbusd.protocol.errors import SbusError


class SourceError(SbusError, ValueError):
    """An option, a schema, or rows that the Data Source cannot take; the text is one line that says what to do."""
