"""Runs ``python -m sbus_archive.pipeline``; also the file for spark-submit(1)."""

from __future__ import annotations

from sbus_archive.pipeline.main import main

if __name__ == "__main__":
    main()
