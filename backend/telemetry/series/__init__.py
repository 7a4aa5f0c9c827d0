"""Metric series: points, rollups, and what a chart draws of them."""
