"""The control plane: who may train what, when it runs, and what became of it. Imports nothing heavy.

environment       the variables of every process, declared and read once
variables         the declaration of one variable, and the parsers of its text
missing           what a process says whose environment is wrong
settings          Django's settings
urls              the addresses of pages and of REST
rest              one REST API of all the apps' routes
asgi              the web process: HTTP and the live socket
celery            the application of workers and of the beat
health            two answers for load balancers: it runs, it can serve
pulses            signs of life of the work behind the pages
surroundings      how they, Ray and the store were last seen
listening         who of it is silent, for the health checks of containers
aside             questions to what may never answer
disks             room on the disk of a folder, without waiting for it
site_notices      what is wrong with the site, for a banner on every page
clock             one time for all processes
ids               identifiers, with a prefix for the kind of thing
errors            refusals, which services raise
ports             questions of a lower app to a higher one
prepared_queries  frequent questions, planned once a connection

accounts/         people, teams, projects, keys, rights
pools/            capacity, quotas, budgets, and who starts now
jobs/             jobs from submission to their end
checkpoints/      checkpoints of jobs, and the registry of models
telemetry/        reports of the engine: metrics, trajectories, logs
assets/           data sets and models of teams
usage/            the use of devices, by kind
reconcile/        the database held against Ray
webhooks/         messages to a team's own servers
feeds/            events, log lines and the audit log as streams
audit/            who did what, in chains that show tampering
store/            large things, in a folder or a bucket
outside/          Postgres, broker, mail: addresses, certificates
borders/          ids, times, names and addresses that come from outside
api/              the common part of all of REST
operating/        what the operator of a site does: its first minute, its examination
pages/            pages in the browser
"""
