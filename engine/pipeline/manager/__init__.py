"""The manager's brain: notices that a part is gone, has it replaced, gives lost work back, plans repacks."""
