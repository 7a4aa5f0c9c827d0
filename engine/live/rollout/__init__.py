"""A replica: decodes samples on the versions that it holds, and takes turns with the environment.

actor         the engine built; messages in and out
body          the brain's effects carried out
places        samples that wait for a place or for pages, or leave
samples       from grant to end: waiting for a place, for a prompt, decoding, waiting for an answer
telling       what a growing one tells of itself
wording       prompts and observations as tokens, by the model's chat template
conversation  one sample's tokens, and where it stands
open_turns    asks to the environment that are not answered yet
weight_slots  a rollout engine for each version that is held
self_report   a replica's news of itself, about once a second
activity      the use of its time
"""
