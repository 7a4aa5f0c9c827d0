"""The pages of operators of the platform; for everybody else they do not exist.

urls            the addresses, and which of them are tabs
frame           who may look, how a form is read, how an act is told
pool_views      pools: capacity, quotas, the line with its priorities
pool_form       the fields of a pool, typed and shown
drain_views     hosts taken out and given back, jobs sent back into the line
ways_back       what undoes a change of theirs
price_views     prices of a pool
team_views      teams, and new ones with an invitation for their owner
admin_site      Django's admin, for looking only
maintenance_views  maintenance announced, changed and ended
question_views  teams that ask for quota, answered
people_views    accounts closed and opened, links for who is locked out
"""
