"""The jobs of the reader's teams.

list_views     the list
asked          how an address narrows and orders it
choices        what can be chosen to narrow it by
rows           its rows, and the counts of each state
judged         which of them are ill, and what is said of them
several_views  asking before something is done with several, and doing it
several        what can be done with several, and what it costs them together
"""
