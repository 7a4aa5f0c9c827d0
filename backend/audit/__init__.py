"""The audit log: who did what to which thing, in chains that nobody can quietly rewrite.

models        rows, each with the hash of the one before
services      new entries of a team's chain
selectors     the log as its team reads it
anchors       signed ends of chains, kept outside the database
places        where those and their key lie
key_rotation  a new key, and the public halves of those before
anchoring     signing the chains that have grown
verification  a walk over every chain, compared with the anchors
admin         the log as operators read it
background    the task that signs every few minutes
"""
