"""Other engines on the same files, each in a process of its own.

Polars makes the three largest tables, DuckDB these and four others: column for column, but ``calls`` have exact percentiles in place of
histograms, and rare values of only some columns share a row. A process is timed whole: with its start, reading, computing, and Parquet
files written.

Run: ``python -m tests.bench.pipeline.engines duckdb|polars ARCHIVE FOLDER``.
"""

from __future__ import annotations

import sys
from pathlib import Path

COMPARED = {
    "duckdb": ("traffic", "users", "flows", "calls", "losses", "security", "relay"),
    "polars": ("traffic", "users", "calls"),
}
"""The tables that each engine makes."""

ENGINES = tuple(COMPARED)


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
