"""The common part of every part's body."""
