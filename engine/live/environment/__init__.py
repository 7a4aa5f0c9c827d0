"""The workers of the environment: prompts, answers and rewards, in processes of their own.

actor         receives turns, sends answers
turns         messages between replicas and workers; no brain sees them
failures      why a call has no answer, and whose fault that is
turn_threads  an environment on threads, so that a slow grader delays nobody else
"""
