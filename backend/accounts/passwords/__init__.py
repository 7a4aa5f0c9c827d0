"""Judging a new password, without a network.

context   words that an attacker tries first: of the person, of their teams, of the site
breached  passwords that are known from breaches, in a file that the operator keeps
"""
