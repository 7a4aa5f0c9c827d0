"""Servers that an operator has already: how we reach them, and whom we take for them.

addresses  of the database and the broker, with the authorities that they are checked by
database   Postgres, by a pooler and directly
mail       the mail server
trust      certificates: of which authorities, and what to do about one that is refused

`manage.py migrate` goes past the pooler (management/).
"""
