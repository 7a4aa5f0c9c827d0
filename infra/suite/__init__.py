"""The test suite as a gate: how `make test` and `make test-long` run pytest, and what they record.

| module | holds |
|---|---|
| `__main__` | `python -m infra.suite gate` or `long` |
| `verdict` | the run, the retries, what is red |
| `report` | what is printed at the end and kept in `.laminar/` |
| `plugin` | the pytest plugin: order and grouping of tests, timeouts, a record of every result |
| `groups` | which test files share one worker |
| `meter` | what a test costs: wall and CPU seconds, less imports and fixtures of the session |
| `speed` | SCALE: how much slower this machine is than the reference |
| `results` | the recorded results: failures, slow tests, skips, the time table |
| `databases` | the test databases: migrated once, copied for each worker |
| `commands` | pytest as a child process with a time budget; what it left behind is ended |
"""
