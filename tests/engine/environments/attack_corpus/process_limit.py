# expect: Finished
import os
import time

num = 0
try:
    while num < 500:
        if os.fork() == 0:
            time.sleep(10_000)
        num += 1
    print("ESCAPED")
except BlockingIOError:
    print("blocked")
