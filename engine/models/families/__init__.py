"""Families: models of transformers' own classes, and the interface that they share with this project's decoder."""
