# expect: TimedOut
while True:
    pass
