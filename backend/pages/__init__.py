"""What people see in the browser, made on the server.

urls              the addresses of the pages
views             the job list, help
job_views         one job, live; cancelling it
submit_views      template, form, submit
checkpoint_views  a job's checkpoints and their evaluations
queue_views       quota and line of each pool
usage_views       what a team used
team_views        people, invitations, service accounts, second factors
invitation_views  accepting an invitation
key_views         API keys: list, make, revoke
webhook_views     endpoints, and what was sent to them
audit_views       the team's audit log, and whether it holds
job_rows          the rows and counts of the job list
snapshot          what a job's page holds when it arrives
tiles             what each tile says, and whether that is good
charts            what each chart draws and what to look for
timeline          a job's history as a bar
forms             the new-job form: typed text, faults, spec
spec_fields       the form's fields, read off the spec
starting_specs    what the form begins with
submit_targets    projects and pools to choose from
curl              the API call behind a page
words             states, reasons and failures in words that help
event_sentences   events as sentences
glossary          one word for one thing, explained
csp               which scripts and styles a browser may run
templatetags/     what the templates call
"""
