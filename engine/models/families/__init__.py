"""Families: models of transformers' own classes, beside the decoder of this project, and what a trainer takes of both.

trained_model  either of them, by the folder's configuration
settings       a configuration of a family, and what of it is refused
family_model   transformers' layers over packed tokens
attention      the attention that these layers call
agreement      configuration, tokenizer and weights of a folder, held against one another
"""
