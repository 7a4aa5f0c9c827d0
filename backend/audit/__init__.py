"""The audit log: who did what to which thing, in chains that nobody can quietly rewrite.

models        rows, each with the hash of the one before
services      adds to a team's chain
selectors     the log as its team reads it
anchors       signed ends of chains, kept outside the database
anchoring     signs the chains that have grown
verification  walks every chain and compares it with the anchors
background    the task that signs every few minutes
"""
