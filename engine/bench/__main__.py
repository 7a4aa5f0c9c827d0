"""`python -m engine.bench NAME`: as `python -m engine bench NAME`, on machines without Ray."""

import sys

from engine.bench.command import bench

sys.exit(bench(sys.argv[1:]))
