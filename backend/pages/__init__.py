"""Pages in the browser, made on the server.

urls              the addresses of the pages
views             the job list, help
job_views         one job, live; cancelling it
submit_views      template, form, submit
checkpoint_views  a job's checkpoints and their evaluations
queue_views       the quota and the line of each pool
usage_views       use of devices by a team
team_views        people, invitations, service accounts, second factors
invitation_views  accepting an invitation
key_views         API keys: list, make, revoke
webhook_views     endpoints, and the messages sent to them
audit_views       the team's audit log, and whether it holds
assets/           data sets and models of a team
job_rows          the rows and counts of the job list
snapshot          the content of a job's page when it arrives
tiles             the tiles of a job's page, with their verdicts
charts            the charts of a job's page, with hints to read them
timeline          a job's history as a bar
forms             the new-job form: typed text, faults, spec
spec_fields       the form's fields, read off the spec
starting_specs    specs that the form begins with
submit_targets    projects and pools to choose from
curl              the API call behind a page
words             states, reasons and failures in words that help
event_sentences   events as sentences
glossary          one word for one thing, explained
account/          one's own account: signing in, address, password, sessions
headers           what a browser may do with an answer: scripts, styles, keeping it
templatetags/     filters and tags for the templates
"""
