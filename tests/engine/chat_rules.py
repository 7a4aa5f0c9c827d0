"""A small model with Qwen3's chat format: its chat template, its special tokens, and bytes for everything else.

The template is the published one, from a package of the test environment. The tokenizer follows Qwen3's rules: BPE over
bytes, turn marks as special tokens, thought and tool marks as ordinary added tokens.
"""

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.engine.models.families.tiny import save_tiny

TEMPLATES: Final = ("qwen3", "qwen3_instruct_2507", "qwen2_5", "llama3_1", "qwen3_training")
END: Final = "<|im_end|>"
_SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", END)
_MARKS: Final = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_TEXT: Final = "user assistant system tool name arguments calculator expression the the answer is is question " * 4


@cache
def published(name: str) -> str:
    package = find_spec("trl")
    assert package is not None and package.origin is not None
    return (Path(package.origin).parent / "chat_templates" / f"{name}.jinja").read_text()


@cache
def tokenizer() -> Tokenizer:
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [_TEXT], trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    )
    bpe.add_special_tokens([AddedToken(word, special=True) for word in _SPECIAL])
    bpe.add_tokens([AddedToken(word, special=False) for word in _MARKS])
    return bpe


def save_qwen3(folder: Path, *, template: str | None = "qwen3") -> Path:
    words = tokenizer()
    ends = [words.token_to_id(END), words.token_to_id("<|endoftext|>")]
    save_tiny(
        folder,
        "qwen3",
        vocab_size=words.get_vocab_size(with_added_tokens=True),
        max_position_embeddings=4_096,
        eos_token_id=ends[0],
        pad_token_id=ends[1],
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, "pad_token_id": ends[1]}))
    words.save(str(folder / "tokenizer.json"))
    config = {"eos_token": END, "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    if template is not None:
        (folder / "chat_template.jinja").write_text(published(template))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
