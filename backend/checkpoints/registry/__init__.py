"""The model registry: named versions made from checkpoints, next to uploaded ones."""
