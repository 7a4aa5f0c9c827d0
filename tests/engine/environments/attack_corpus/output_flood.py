# expect: Killed
while True:
    print("x" * 65_536)
