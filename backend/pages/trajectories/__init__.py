"""Reading what a model writes: step, group, trajectory, token.

tab          what the tab shows: a step to read, or what was found
reading      a step as groups, and where there is more to read before it and after it
asked        filters and words to search for, read off an address
found        trajectories that match, each with the place where it does
sought       the places of words in a text
ledger       where all samples of a run went
views        one trajectory at an address of its own
turns        its response as messages
tokens       its tokens in four colourings, with their legends
meanings     ends and outcomes in plain words
tones        how good a reward is, beside others
"""
