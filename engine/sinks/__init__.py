"""Where facts go: onto disk first, and from there to the control plane; or only to a file, or to memory.

port           what every sink can do
spool          facts on disk, numbered
http_shipper   from the spool to the control plane
control_plane  its calls, and what its answers mean
lines          log lines on their way into facts
jsonl          facts in a file
memory         facts kept for tests
"""
