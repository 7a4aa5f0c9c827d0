"""Sinks of facts: onto disk first, and from there to the control plane; or only to a file, or to memory.

port           the calls of every sink
spool          facts on disk, numbered
http_shipper   the way from the spool to the control plane
control_plane  its calls, and the meaning of its answers
lines          log lines on their way into facts
tracing        spans of what happens, for a collector
jsonl          facts in a file
memory         facts kept for tests
"""
