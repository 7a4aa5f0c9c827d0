# expect: Finished
import threading

threading.stack_size(32 << 10)
num = 0
try:
    while num < 500:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        num += 1
    print("ESCAPED")
except RuntimeError:
    print("blocked", flush=True)
