# expect: TimedOut
import time

time.sleep(10_000)
