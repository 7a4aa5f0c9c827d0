"""Events, log lines and the audit log, to be read by programs.

sources       the events of a stream
log_lines     the log lines of a stream
streaming     one stream: first the events missed, then the new ones
opening       the start of a stream: its listener is counted, and judged again while it lasts
open_streams  the number that is open in this process
events_api    events of a job or a team, as page or stream
logs_api      log lines of a job as they are written
audit_api     the audit log, by the page
prometheus    the whole installation in numbers, at each scrape
"""
