"""Families: models of transformers' own classes, beside the decoder of this project, and what a trainer takes of
both.
"""
