# expect: OutOfMemory
print(len(bytearray(64 << 30)))
