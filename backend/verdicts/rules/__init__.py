"""The rules of the verdict: what was seen of a run in, what is said of it out. Pure: no clock, no table.

observed   what is known of a run: its series, where it stands, since when it is silent
rewards    rewards by their own scale
series     the series that are read
finding    what a rule says: a sentence, the charts that show it, what to do
alarms     what is ill: stalled, failing, untrusted, mismatched, collapsing, stuck, stale
collapse   the ways in which a run collapses
parts      a reward of which only the form is learned
course     how it goes otherwise: too early to tell, learning, solved, a plateau
pace       where its time goes: a starved trainer, starved replicas
judging    which of all that stands above the page

Thresholds stand beside their rule with their reason; tests/verdict holds them against recorded runs.
"""
