"""What the engine reports: taken in once, kept small, drawn live.

models              series, trajectories, log lines, activity
ingest              takes in facts, each once and in order
effects             what each kind of fact does to its job
series              writes points
rollups             many points as few rows
thinned_series      reads any range in a bounded number of points
drawing             series as a page draws them
trajectories        writes those that a step shows
trajectory_archive  whole ones go into the store
parquet             the format of that archive
trajectory_search   finds trajectories, and one whole
logs                writes, searches and follows log lines
last_words          what each part said before it failed
activity            what replicas did when
compression         makes texts small
selectors           reads series and trajectories
retention           old points are reduced to rollups
removal             old lines and trajectories go
background          the tasks that tick
hub                 one listener a process, nudges to its sockets
consumers           the browser's socket
origin              which pages may open one
auth_changes        who may have lost the right to watch
live                what a page pulls after a nudge
internal_api        where drivers send facts and heartbeats
api                 REST over metrics
activity_api        REST over replicas' timelines and log lines
trajectories_api    REST over what models wrote
representations     how all of it looks to programs and pages
"""
