# expect: Finished
"""Scattered pages: each takes two more pages for its page tables, which no limit counts."""

import ctypes

libc = ctypes.CDLL("libc.so.6", use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
ANONYMOUS, FIXED, FAILED = 0x22, 0x10, 2**64 - 1


def mapped(at: int | None, flags: int) -> int | None:
    found = libc.mmap(ctypes.c_void_p(at), ctypes.c_size_t(4096), 3, flags, -1, ctypes.c_long(0))
    return None if found in (None, FAILED) else found


far = [at for at in (1 << 46, 5 << 40, 0x5555 << 32 | 1 << 30, 0x2AAA << 32) for flags in (0, FIXED)
       if mapped(at, ANONYMOUS | flags) == at]  # fmt: skip
page = mapped(None, ANONYMOUS)
moved = libc.mremap(ctypes.c_void_p(page), ctypes.c_size_t(4096), ctypes.c_size_t(4096), 3, ctypes.c_void_p(1 << 46))
if moved not in (None, FAILED):
    far.append(moved)
print(f"ESCAPED: {far}" if far else "blocked")
