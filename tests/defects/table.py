"""The defects: plausible mistakes near what tests assert that were removed, merged or made cheaper.

Such work must not let one of them pass. A change of one of these lines changes the table too.
"""

from __future__ import annotations

from tests.defects.archive import ARCHIVE
from tests.defects.connections import CONNECTIONS
from tests.defects.services import SERVICES

DEFECTS = (*SERVICES, *CONNECTIONS, *ARCHIVE)
"""All of them, those whose tests are quick first."""
