"""The manager's brain: detects lost parts, has them replaced, gives lost work back, plans repacks."""
