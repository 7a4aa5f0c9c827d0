"""The generation of an installation, which grows whenever its database was put back in time.

mark         the copy outside the database, by which that is noticed
raising      the look, and the raise
left_behind  what attempts of the lost time have left: their folders, their facts, their submissions
"""
