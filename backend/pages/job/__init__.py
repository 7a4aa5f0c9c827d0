"""The page of one job, in tabs with addresses of their own, and what can be done there.

tabs                  which tabs there are, their addresses, and what each loads
contents              what each tab shows
controls              pausing, resuming, cancelling, killing: when, at what cost, by whom
control_views         asking once more, and doing it
acts                  what became of what was asked, by what the engine recorded
retry_views           a new job of one that is over
change_views          name, tags, priority, runtime
making                jobs that a button makes, each once
checkpoint_acts       pinning, promoting, deleting
checkpoint_act_views  asking once more, and doing it; downloads; which are kept
log_lines             log lines, filtered, searched, followed
faults                faults and attempts
spec_changes          what its spec has that its forerunner's has not
use                   devices held, by kind and cost
"""
