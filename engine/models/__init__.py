"""The decoder, its files and its tokenizer."""
