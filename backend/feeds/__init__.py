"""What happened, to be read: event streams and the audit log.

sources       which events a stream tells
log_lines     which log lines a stream tells
streaming     one stream: what was missed, then what comes
opening       who listens, counted and judged again while it lasts
open_streams  how many are open in this process
events_api    events of a job or a team, as page or stream
logs_api      a job's log lines as they are written
audit_api     the audit log, by the page
prometheus    the whole installation in numbers, at each scrape
"""
