"""A person's one address: it counts only once proved, and how it moves.

proved   whose an address is, and who says so
claims   the owner of an address comes by OpenID to an account that rests on another's word
changes  the move to another address
telling  its letters
"""
