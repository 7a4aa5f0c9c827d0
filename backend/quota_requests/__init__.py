"""Questions for more of a pool: a team asks, an operator answers.

models     questions and their answers
questions  asking and answering, audited and told
"""
