"""The optimizer: AdamW, whoever divides its parameters.

fused_adamw          AdamW by torch's fused kernel
learning_rate        the learning rate's course over the steps of a job
stochastic_rounding  moments in bfloat16
small_floats         moments in 8 bits
"""
