"""Pure decisions: snapshot in, decision out. No clock, no chance, no bodies.

schedule     who waits for whom, a row for each system
sampling     which groups make the next batch
lineage      which weights descend from which, and staleness
pace         how long a piece of work may take
recovery     when a part is gone, and a run beyond help
relay_chain  who follows whom, who leads
repack       which tails move, to free slots
"""
