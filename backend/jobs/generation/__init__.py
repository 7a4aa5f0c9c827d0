"""The generation of an installation: grows whenever its database is restored to an earlier time."""
