"""Uploads: from a listing to a complete asset."""
