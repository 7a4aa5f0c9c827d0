"""The generation of an installation, which grows whenever its database was put back in time."""
