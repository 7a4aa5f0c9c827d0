"""Held memory counts a tree of processes, and shared memory once."""

import subprocess
import sys

from engine.process.held_memory import HeldMemory, held_by_tree

MB = 1 << 20
HOLDS = """
import mmap, subprocess, sys
shared = mmap.mmap(-1, 96 << 20)  # shared with the child: a mapping without a file is shared memory
shared.write(b"x" * (96 << 20))
own = bytearray(b"x" * (64 << 20))
import os
if os.fork() == 0:
    shared[::4096]
    own = bytearray(b"y" * (80 << 20))
    print("held", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""


def test_a_trees_memory_is_summed_and_shared_memory_counted_once() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        assert parent.stdout.readline() == b"held\n"
        held = held_by_tree(parent.pid)
        parent.stdin.close()
    assert held.own >= 144 * MB and 96 * MB <= held.shared < 120 * MB


def test_process_that_ended_holds_nothing() -> None:
    assert held_by_tree(2**22 + 1) == HeldMemory()


def test_only_a_change_by_an_eighth_is_worth_a_report() -> None:
    before = HeldMemory(own=1_024 * MB, shared=80 * MB)
    assert HeldMemory(own=1_100 * MB, shared=100 * MB).is_near(before)
    assert not HeldMemory(own=1_160 * MB, shared=80 * MB).is_near(before)
    assert not HeldMemory(own=1_024 * MB, shared=10 * MB).is_near(before)
