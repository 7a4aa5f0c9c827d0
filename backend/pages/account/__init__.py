"""Account pages: sign-in, address, password and sessions."""
