"""Losses and advantages, which turn rewards into learning: pure functions of tensors, chosen by the spec.

advantages   advantages out of rewards
loss         the policy's loss
corrections  proximal policy and weight for tokens of older policies
values       the critic's loss
"""
