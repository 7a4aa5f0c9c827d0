"""`python -m tests.bench.engine NAME`: as `python -m engine bench NAME`, on machines without Ray."""

import sys

from tests.bench.engine.command import bench

sys.exit(bench(sys.argv[1:]))
