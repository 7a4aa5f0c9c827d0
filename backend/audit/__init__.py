"""The audit log: who did what to which thing, in chains that nobody can quietly rewrite."""
