"""What happened, to be read: event streams and the audit log."""
