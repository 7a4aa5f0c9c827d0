"""Pure decisions: snapshot in, decision out. No clock, no chance, no bodies.

schedule     who waits for whom, a row for each system
sampling     the groups of the next batch
lineage      the tree of weights, and staleness in it
pace         the time that a piece of work may take
silence      the time since a sign was due, less what its process waited for a core
awake        the time by which others are judged, less what the judge slept through
recovery     signs that a part is gone, or a run beyond help
relay_chain  the order of relays, and the one that leads
travel       a version whole, or what changed
placement    a host for each rank, replica and relay
repack       the tails to move, to free slots
"""
