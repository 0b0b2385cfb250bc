"""Runs ``python -m sbusd.pipeline``; also the file for spark-submit(1)."""

from __future__ import annotations

from sbusd.pipeline.main import main

if __name__ == "__main__":
    main()
