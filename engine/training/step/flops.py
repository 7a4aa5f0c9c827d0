"""Floating-point operations of a sequence, by which work is balanced among ranks."""


def flops_of_sequence(num_weights: int, attention_width: int, length: int) -> float:
    """One forward pass, with attention: every token attends to earlier ones, in every layer's width of heads."""
    return 2.0 * num_weights * length + 2.0 * attention_width * length**2
