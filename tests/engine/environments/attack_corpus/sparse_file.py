# expect: Finished
from pathlib import Path

try:
    with Path("/tmp/sparse").open("wb") as file:
        file.truncate(1 << 40)
    print("ESCAPED")
except OSError:
    print("blocked")
