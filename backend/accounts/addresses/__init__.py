"""A user's one e-mail address: how it is verified, and how it changes."""
