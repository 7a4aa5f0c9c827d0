"""Floating-point operations of a sequence, by which micro-batches are dealt to ranks."""


def flops_of_sequence(num_weights: int, attention_width: int, length: int) -> float:
    """Of a forward pass, with attention: every token sees those before it, in every layer's width of heads."""
    return 2.0 * num_weights * length + 2.0 * attention_width * length**2
