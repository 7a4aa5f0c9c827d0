"""Acts of operators of the platform on teams and people.

acting        the operator who acts, and the site's log
teams         a new team with an invitation for its owner
people        accounts closed and opened again; links for people who are locked out
operator_api  REST over teams and people
"""
