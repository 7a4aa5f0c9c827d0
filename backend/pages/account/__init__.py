"""The pages of a person's own account: signing in, the address, the password, the sessions.

urls           every address below /accounts/: ours, and those of allauth that we show
address_views  one's address, and moving to another
reset_views    a forgotten password
session_views  the browsers in which one is signed in
limits         limits by network address
"""
