"""The audit log: who did what to which resource, in tamper-evident chains."""
