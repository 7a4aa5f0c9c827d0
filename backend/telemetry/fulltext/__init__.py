"""Full-text search over all that trajectories say, of the prompts and of every turn.

words     the words of a text, the same for who writes and for who asks
question  a search as somebody typed it
said      what of a trajectory is searched, and the passage that answers
indexing  words written beside each new trajectory
finding   trajectories of a job or of a team that answer a question
"""
