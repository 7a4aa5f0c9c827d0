# expect: Finished
from pathlib import Path

try:
    for number in range(1_000):
        Path(f"/tmp/{number}").write_bytes(bytes(1 << 20))
    print("ESCAPED")
except OSError:
    print("blocked")
