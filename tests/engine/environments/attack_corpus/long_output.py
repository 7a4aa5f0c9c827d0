# expect: Finished
print("blocked: this line is kept")
print("x" * 500_000)
