"""Who is here and what they may do: people, teams, projects, and the keys of programs.

models            users, teams, projects, invitations, service accounts, keys
selectors         who belongs where
rights            who may do what, in one table
scopes            what a key may do, and which role carries it
acting            the person or key behind a change
teams             a team's name and rules, its projects
memberships       roles, leaving, being removed
invitations       how somebody comes into a team
service_accounts  identities of programs, which outlive their makers
keys              the text of a key, with its checksum
key_making        who may make and revoke which key
services          keys stored, revoked, recognised
ceilings          the most that a key's jobs may hold and use
project_limits    what a key of one project reaches
adapter           sign-up and password attempts, as allauth asks us
second_factor     who must have one; secrets encrypted at rest
shared_cache      allauth's limits, counted in Postgres
oidc/             signing in with an OpenID provider
bearer            who calls, by the Authorization header
api               REST over the key that asks, its team and projects
people_api        REST over members and invitations
programs_api      REST over keys and service accounts
representations   how people and keys look to programs
admin             pages for operators
"""
