"""The trainer: trains, hands versions over, starts checkpoint writes."""
