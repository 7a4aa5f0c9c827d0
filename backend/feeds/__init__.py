"""Events, log lines and the audit log, to be read by programs."""
