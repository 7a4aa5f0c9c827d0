"""The test suite as a gate: how `make test` and `make test-long` run pytest, and what they record."""
