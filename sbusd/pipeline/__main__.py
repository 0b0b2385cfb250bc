"""``python -m sbusd.pipeline``, and the file that spark-submit(1) is given."""

from __future__ import annotations

from sbusd.pipeline.main import main

if __name__ == "__main__":
    main()
