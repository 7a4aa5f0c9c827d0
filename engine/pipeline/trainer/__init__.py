"""The trainer's brain: asks for a batch, trains, hands the new version over.

brain    messages in, effects out
offers   what the leading relay is offered, and which copies are kept for that
metrics  what a step says of itself
"""
