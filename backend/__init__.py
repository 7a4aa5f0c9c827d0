"""The control plane: who may train what, when it runs, and what became of it. Imports nothing heavy.

environment       what a process is told from outside, read once
settings          Django's settings
urls              every address, of pages and of REST
rest              one REST API out of what the apps bring
asgi              the web process: HTTP and the live socket
celery            the application of workers and of the beat
health            whether this process runs, and whether it can serve
clock             what time it is, for all processes alike
ids               identifiers that say what they name
errors            what a service raises when it refuses
ports             how a lower app asks something of a higher one
prepared_queries  frequent questions, planned once a connection

accounts/         people, teams, projects, keys, rights
pools/            capacity, quotas, budgets, and who starts now
jobs/             jobs from submission to their end
checkpoints/      what jobs saved, and the registry of models
telemetry/        what the engine reports: metrics, trajectories, logs
usage/            what devices were used for
reconcile/        the database held against Ray
webhooks/         messages to a team's own servers
feeds/            events, log lines and the audit log as streams
audit/            who did what, in chains that show tampering
store/            large things, in a folder or a bucket
api/              what all of REST has in common
pages/            what people see in the browser
"""
