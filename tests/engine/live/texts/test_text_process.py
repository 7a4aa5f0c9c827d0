"""Hostile chat templates and tokenizers cost one text in a bounded process, and honest ones read as in this process."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.environments.port import Prompt
from engine.environments.sandbox.outcome import Refused
from engine.environments.sandbox.worker import CallFailed, WorkerPool
from engine.inference.stop import StopWatcher
from engine.live.facts.token_texts import texts_of_tokens
from engine.live.rollout.conversation import text_failure
from engine.live.texts import text_process
from engine.live.texts.model_texts import BoundedTokenizer, ModelTexts, open_texts, words_of
from engine.live.texts.text_process import TextsUnavailable
from engine.models.chat import ChatTemplate
from engine.models.tokenizer import Tokenizer
from tests.engine.chat_rules import END, save_qwen3
from tests.engine.environments.sandboxed import sandbox

__all__ = ["sandbox"]

pytestmark = pytest.mark.usefixtures("sandbox")

Spoil = Callable[[Path], None]
USER = [{"role": "user", "content": "What is 6 times 7?"}]
ANSWER = f"<think>\nIt is é, 日本 and 🙂.\n</think>\n\nthe answer is 42{END}"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_qwen3(tmp_path_factory.mktemp("qwen3"))


def opened(folder: Path) -> ModelTexts:
    return open_texts(folder, by_template=True)


def template(source: str) -> Spoil:
    return raw("chat_template.jinja", source)


def config(**settings: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))

    return spoil


def raw(name: str, text: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).write_text(text)

    return spoil


def tokenizer_json(**parts: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        file = folder / "tokenizer.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | parts))

    return spoil


SPLIT = {"type": "Split", "pattern": {"Regex": "(1+1+)+2"}, "behavior": "Isolated", "invert": False}
PANICS = tokenizer_json(pre_tokenizer=SPLIT)
PANICS_BACK = tokenizer_json(decoder={"type": "Replace", "pattern": {"Regex": "(1+1+)+2"}, "content": ""})
ON_ONE_PROMPT = (
    "{% if '7' in messages[0]['content'] %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
)
LOOPS = template(f"{ON_ONE_PROMPT}{{% endfor %}}{{% endif %}}{{{{ messages[0]['content'] }}}}")


def test_bounded_tokenizer_and_template_match_those_in_process(honest: Path) -> None:
    bounded, template, own = opened(honest), ChatTemplate.of_folder(honest, {}), Tokenizer.from_folder(honest)
    assert isinstance(bounded.tokenizer, BoundedTokenizer) and bounded.template and template
    tool = {"type": "function", "function": {"name": "calculator", "parameters": {}}}
    assert bounded.template.rendered(USER, [tool]) == template.rendered(USER, [tool])
    ids = own.encode(ANSWER, goes_on=True)
    assert bounded.tokenizer.encode(ANSWER, goes_on=True) == ids
    assert bounded.tokenizer.decode(ids) == own.decode(ids)
    assert (bounded.tokenizer.eos_ids, bounded.tokenizer.end_of(ids)) == (own.eos_ids, own.end_of(ids))
    assert words_of(honest) == own.words()
    assert texts_of_tokens(honest)(ids) == own.pieces(ids)


def test_stop_strings_end_at_the_same_token_as_in_process(honest: Path) -> None:
    own, bounded = Tokenizer.from_folder(honest), opened(honest).tokenizer
    ids = own.encode(ANSWER, goes_on=True)
    for stop in ("é, 日本", "🙂.\n</th", "answer", "absent"):
        by_own, by_bounded = StopWatcher(own, [stop]), StopWatcher(bounded, [stop])
        ends = [by_own.completes(token) for token in ids]
        assert [by_bounded.completes(token) for token in ids] == ends and any(ends) == (stop in ANSWER)


@pytest.mark.long
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (LOOPS, "took longer than|did not answer in time"),
        (template("{{ 'a' * 2000000000 }}"), "MemoryError|in time|2048 MiB"),
        (template("{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}"), "MemoryError|bytes|in time|2048 MiB"),
        (template("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"), "recursion"),
        (PANICS, "PanicException"),
        (config(bos_token=["x"]), "TypeError"),
        (raw("tokenizer_config.json", '{"chat_template":' * 1_000 + "0" + "}" * 1_000), "must be a text|Recursion"),
        (raw("tokenizer_config.json", '{"a":' * 100_000 + "0" + "}" * 100_000), "Recursion"),
        (raw("tokenizer.json", "[" * 100_000), "recursion|Exception"),
    ],
    ids=["loops", "allocates", "floods", "recurses", "panics", "bos_list", "nested", "nested_deeply", "nested_words"],
)  # fmt: skip
def test_hostile_folder_is_refused_and_the_next_text_is_served(
    spoil: Spoil, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_process, "TEXT_S", 2.0)
    folder = save_qwen3(tmp_path / "model")
    spoil(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=reason):
        read(folder, f"{'1' * 40} is not 7")
    if spoil in (LOOPS, PANICS):
        assert read(folder, "2")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "KiB: only the process allocates"


def read(folder: Path, text: str) -> list[int]:
    texts = opened(folder)
    assert texts.template is not None
    return texts.tokenizer.encode(texts.template.rendered([{"role": "user", "content": text}]))


def test_decoder_that_panics_refuses_texts_and_finds_no_stop(tmp_path: Path) -> None:
    folder = save_qwen3(tmp_path / "model")
    words = Tokenizer.from_folder(folder).words()
    PANICS_BACK(folder)
    ones = {**MARK, "id": len(words), "content": "1" * 40}
    tokenizer_json(added_tokens=[{**MARK, "id": words[END], "content": END}, ones])(folder)
    tokenizer, token = opened(folder).tokenizer, words_of(folder)["1" * 40]
    with pytest.raises(ValueError, match="PanicException"):
        tokenizer.decode([token])
    assert not StopWatcher(tokenizer, ["2"]).completes(token)
    spell = texts_of_tokens(folder)
    assert spell([token]) == spell([words[END]]) == [], "no texts after the first failure"


MARK = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


@pytest.mark.long
def test_host_without_a_sandbox_has_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_process, "TEXT_S", 2.0)
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    folder = save_qwen3(tmp_path / "model")
    template("{{ 'a' * 100000000000 if '1' in messages[0].content else messages[0].content }}")(folder)
    with pytest.raises(ValueError, match="MemoryError"):
        read(folder, "1")
    assert read(folder, "2") == Tokenizer.from_folder(folder).encode("2")
    LOOPS(folder)
    with pytest.raises(ValueError, match=r"took longer than|did not answer in time"):
        read(folder, "7")


def test_sandbox_that_does_not_start_is_no_fault_of_the_text(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = opened(honest).template
    assert process is not None

    def fail(*_: object, **__: object) -> None:
        raise CallFailed("no namespace", outcome=Refused(reason="no namespace"))

    monkeypatch.setattr(WorkerPool, "call", fail)
    with pytest.raises(TextsUnavailable) as caught:
        process.rendered(USER)
    prompt = Prompt(split="train", ordinal=0, text="7", facts={})
    assert text_failure(caught.value, prompt).blame == "platform"
    assert text_failure(ValueError("it panics"), prompt).blame == "user_code"


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_file_that_is_not_text_is_refused(name: str, tmp_path: Path) -> None:
    folder = save_qwen3(tmp_path / "model")
    (folder / name).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="must be UTF-8"):
        opened(folder)
