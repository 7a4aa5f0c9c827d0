"""Reports of the engine: taken in once, kept small, drawn live.

models              series, trajectories and their words, log lines, activity
ingest              the intake of facts, each once and in order
effects             the effect of each kind of fact on its job
series              points written
rollups             many points as few rows
standing            what of a series counts after an attempt went back
thinned_series      any range read in a bounded number of points
drawing             series as a page draws them
trajectories        those that a step shows, written
trajectory_archive  whole ones in the store
parquet             the format of that archive
trajectory_search   trajectories found, and one whole
trajectory_groups   the samples of a step by their question, and by what became of them
logs                log lines written, searched and followed
last_words          the last lines of each part before it failed
activity            the timeline of replicas
replica_states      their caches, rows and tokens
ledger              the samples of a run by their end
compression         texts made small
selectors           series and trajectories read
retention           old points are reduced to rollups
removal             old lines and trajectories go
background          the tasks that tick
hub                 one listener a process, nudges to its sockets
consumers           the browser's socket
origin              the pages that may open one
auth_changes        notices that somebody may have lost the right to watch
live                the answer to a page's pull after a nudge
api                 REST over metrics
activity_api        REST over replicas, the ledger and log lines
trajectories_api    REST over the texts of models
representations     all of it, as programs and pages see it

fulltext/           the search over all that trajectories say
intake/             the doors by which facts come in
"""
