"""A replica: decodes samples on the versions that it holds, and takes turns with the environment.

actor         builds the engine; messages in and out
body          carries out what the brain wants
samples       from grant to end: waiting for a place, for a prompt, decoding, waiting for an answer
conversation  one sample's tokens, and where it stands
open_turns    what was asked of the environment and is not answered yet
weight_slots  a rollout engine for each version that is held
moved_kv      keys and values on their way to another replica
self_report   what a replica tells of itself about once a second
activity      what it spends its time on
"""
