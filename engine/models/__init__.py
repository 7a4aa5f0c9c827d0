"""The decoder, its files and its tokenizer.

decoder         Llama's shape, with what Qwen2 and Qwen3 add
loading         from a Hugging Face folder and back
packing         sequences of many lengths in one row
tokenizer       text to token ids and back
demo_tokenizer  a small one for the demo task
make_demo       makes the demo model from a seed
demo/           that model's files
"""
