"""The environment's worker: prompts, answers and rewards, in a process of its own.

actor         receives turns, sends answers
turns         what replicas and workers say to each other; no brain sees it
turn_threads  runs an environment on threads, so that a slow grader delays nobody else
"""
