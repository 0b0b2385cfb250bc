"""Other engines on the same files: the three largest tables, each engine's in a process of its own.

They are ``traffic`` and ``users``, column for column, and ``calls``, with exact percentiles in place of histograms and without the fold
of rare commands. A process is timed whole: with its start, reading, computing, and Parquet files written.

Run: ``python -m tests.bench.pipeline.engines duckdb|polars ARCHIVE FOLDER``.
"""

from __future__ import annotations

import sys
from pathlib import Path

COMPARED = ("traffic", "users", "calls")
"""The tables that all engines make."""

ENGINES = ("duckdb", "polars")


def main() -> None:
    """Write the tables of an archive by one engine."""
    name, archive, folder = sys.argv[1:]
    # Each imports its engine alone.
    if name == "duckdb":
        from tests.bench.pipeline.duckdb_tables import write_tables
    else:
        from tests.bench.pipeline.polars_tables import write_tables
    write_tables(Path(archive), Path(folder))


if __name__ == "__main__":
    main()
