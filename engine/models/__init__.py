"""The decoder, its files and its tokenizer.

decoder         Llama's shape, with what Qwen2 and Qwen3 add
loading         the way from a Hugging Face folder and back
mixture         experts, of which a router chooses some for each token
routes          that choice as bytes, to be made again
operations      what layers are made of
rotary          positions, and how folders stretch them
windows         how far back a layer sees
attention       packed sequences, each seeing itself
packing         sequences of many lengths in one row
tokenizer       token ids out of text, and back
chat            messages as text, by a folder's template
vocabulary      the words of two models, compared
demo_tokenizer  a small one for the demo task
make_demo       the demo model made from a seed
make_random     a public model's true shape with random weights
families        models of transformers' own classes
demo/           that model's files
"""
