"""The pages of a person's own account: signing in, the address, the password, the sessions."""
