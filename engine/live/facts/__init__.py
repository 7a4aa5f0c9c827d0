"""The way from the parts' reports to the facts that cross the border.

from_reports  one report, one fact
recorder      facts in the order in which a job lives
token_texts   what single tokens say
"""
