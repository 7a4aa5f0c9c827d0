"""A model's tokenizer and chat template: a customer's programs, which run in a bounded process of their own."""
