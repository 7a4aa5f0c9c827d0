"""Models: the decoder, its files and its tokenizer."""
