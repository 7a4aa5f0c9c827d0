"""People, teams, projects and the keys of programs: who is here, and who may do what.

models            users, teams, projects, invitations, service accounts, keys
selectors         memberships and keys, as somebody may see them
rights            who may do what, in one table
scopes            permissions of a key, and the role that carries each
acting            the person or key behind a change
operators/        what operators of the platform do to teams and people
teams             a team's name and rules, its projects
memberships       roles, leaving, being removed
addresses/        a person's one address: proof of it, and how it moves
letters           mail to people, where there is a server for it
invitations       the way into a team
service_accounts  identities of programs, which outlive their makers
keys              the text of a key, with its checksum
key_making        who may make and revoke which key
services          keys stored, revoked, recognised
ceilings          the most that a key's jobs may hold and use
project_limits    the reach of a key of one project
adapter           sign-up and password attempts, as allauth asks us
signing_in/       what is written down of sign-ins; links that set a password
passwords/        judging a new password
sessions/         the browsers in which people are signed in, and their end
second_factor     the duty to have one; secrets encrypted at rest
shared_cache      allauth's limits, counted in Postgres
oidc/             signing in with an OpenID provider
bearer            the caller, by the Authorization header
api               REST over the key that asks, its team and projects
people_api        REST over members and invitations
programs_api      REST over keys and service accounts
representations   people and keys, as programs see them
background        the task that forgets sessions that are over
admin             pages for operators
"""
