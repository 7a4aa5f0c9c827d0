# expect: OutOfMemory
kept = []
while True:
    kept.append(bytearray(32 << 20))
