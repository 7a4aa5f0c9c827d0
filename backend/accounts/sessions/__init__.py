"""The browsers in which people are signed in.

following  each is noted, seen, and ended when it was idle or there too long
ending     ended by hand, or forgotten when they are over
pace       how often a person's browsers may ask for pages
devices    a browser's own words, as a name
"""
