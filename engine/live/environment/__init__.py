"""The environment's worker: prompts, answers and rewards, in a process of its own.

actor         receives turns, sends answers
turns         messages between replicas and workers; no brain sees them
turn_threads  an environment on threads, so that a slow grader delays nobody else
"""
