"""Pages in the browser, made on the server.

urls              the addresses of the pages
views             help, and who looks
home/             what a person who signs in wants to know first
jobs/             the list of jobs, and doing something with several
job/              the tabs of a job's page
job_views         one job, live
submit_views      template, form, submit
environment_views what environments are and take, with examples
environment_params what the chosen environment takes, beside the new-job form
checkpoint_views  a job's checkpoints and their evaluations
queue_views       the quota and the line of each pool
usage_views       use of devices by a team
team_views        people, invitations, service accounts, second factors
invitation_views  accepting an invitation
key_views         API keys: list, make, revoke
webhook_views     endpoints, and the messages sent to them
audit_views       the team's audit log, and whether it holds
programs/         the client's wheel, the guide for programs, every route of the API
evaluations/      evaluations of checkpoints, each beside the one before it
assets/           data sets and models of a team
snapshot          the content of a job's page when it arrives
reading           what the model wrote at one step
tiles             the tiles of a job's page, with their verdicts
series_views      the points behind the charts of a job, of a range of steps
charts            the charts of a job's page, with hints to read them
verdict_line      the verdict above a job's page
timeline          a job's history as a bar
replica_rows      what the replicas of a run did, a row each
forms             the new-job form: typed text, faults, spec
spec_fields       the form's fields, read off the spec
typed_numbers     numbers as people type them; what has two readings is refused
undoing           what was just done, with the way back
shown_once        secrets that the page behind a form shows once
starting_specs    specs that the form begins with
submit_targets    projects and pools to choose from
curl              the API call behind a page
as_code           the same job as curl, as Python and on the command line
words             states, reasons and failures in words that help
lineage           where a job comes from, and what came of it
said              long texts of a job's parts, each once, with the line that says what happened
failure_panel     why a job failed, and what was seen
event_sentences   events as sentences
glossary          one word for one thing, explained
trajectories/     reading what a model writes: steps, groups, trajectories, tokens
operating/        pages for who operates the site
budgets/          budgets of projects and people
operator/         pages of operators of the platform
account/          one's own account: signing in, address, password, sessions
announcements     maintenance, told on every page
hashed_files      static files under names that tell their content
static_serving    serving them, compressed, to be kept a year
headers           what a browser may do with an answer: scripts, styles, keeping it
templatetags/     filters and tags for the templates
"""
