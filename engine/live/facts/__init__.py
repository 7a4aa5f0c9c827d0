"""The way from the parts' reports to the facts that cross the border."""
