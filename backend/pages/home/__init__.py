"""Home: what a person who signs in wants to know first.

views      the page
needs      what waits for the reader: alarms, failures, paused jobs, questions for quota
capacity   what the reader's teams hold of each pool, and which of their jobs start next
"""
