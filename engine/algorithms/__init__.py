"""What to learn from rewards: pure functions of tensors, chosen by the spec.

advantages   from rewards to advantages
loss         the policy's loss
corrections  what is done about tokens of older policies
values       the critic's loss
"""
