"""Generated hostile folders: each template, tokenizer and configuration is read, or refused as the customer's, within
the bounds and outside of this process."""

import json
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from engine.environments.port import Observation, Prompt, Turn
from engine.live.facts.token_texts import texts_of_tokens
from engine.live.rollout.wording import Wording
from engine.live.run.model_check_child import refuse_model
from engine.live.texts import text_process
from engine.live.texts.text_process import TextsUnavailable
from engine.spec.job import JobSpec
from tests.engine.chat_rules import save_qwen3
from tests.engine.environments.sandboxed import sandbox

__all__ = ["sandbox"]

NUM_FOLDERS: Final = 20
MORE_MEMORY_KIB: Final = 300 << 10

_TEMPLATES: Final = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 2000000000 }}",
    "{{ ('a' * 99999) | tojson * 99 }}",
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{{ messages[0].content * 100000 }}",
    "{{ bos_token }}{{ messages }}",
    "{{ raise_exception('no') }}",
    "{{ 10 ** (10 ** 8) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ messages.append(1) }}",
    "\ud800",
    "{% include 'x' %}",
    "{{ ''.__class__.__mro__ }}",
)
_PATTERNS: Final = ("(1+1+)+2", "(a|a)*b", "(?<=1{1,9}){9}", "", "(", ".*" * 50)
_VALUES: Final[tuple[Any, ...]] = (None, 0, -1, 10**30, "x", ["x"], {"a": 1}, {"content": ["x"]}, [[]] * 3, True)


def spoil(folder: Path, rng: random.Random) -> None:
    changes = rng.sample((_spoil_template, _spoil_config, _spoil_words, _nest), rng.randint(1, 2))
    for change in sorted(changes, key=lambda change: change is _nest):  # the others read what it nests
        change(folder, rng)


def _spoil_template(folder: Path, rng: random.Random) -> None:
    text = rng.choice(_TEMPLATES) + "{{ messages[0].content }}"
    (folder / "chat_template.jinja").write_bytes(text.encode(errors="surrogatepass"))


def _spoil_config(folder: Path, rng: random.Random) -> None:
    name = rng.choice(("tokenizer_config.json", "generation_config.json", "special_tokens_map.json"))
    field = rng.choice(("bos_token", "eos_token", "eos_token_id", "chat_template"))
    (folder / name).write_text(json.dumps(rng.choice(({field: rng.choice(_VALUES)}, [field], rng.choice(_VALUES)))))


def _spoil_words(folder: Path, rng: random.Random) -> None:
    file = folder / "tokenizer.json"
    words = json.loads(file.read_text())
    pattern = {"Regex": rng.choice(_PATTERNS)}
    parts = {
        "pre_tokenizer": {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False},
        "decoder": {"type": "Replace", "pattern": pattern, "content": "a" * rng.choice((0, 1_000_000))},
        "normalizer": {"type": "Replace", "pattern": pattern, "content": "1" * rng.choice((0, 1_000_000))},
        "post_processor": rng.choice(_VALUES),
        "model": rng.choice(_VALUES),
    }
    name = rng.choice(sorted(parts))
    file.write_text(json.dumps({**words, name: parts[name]}))


def _nest(folder: Path, rng: random.Random) -> None:
    name = rng.choice(("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"))
    depth = rng.choice((1_000, 100_000))
    (folder / name).write_text('{"a":' * depth + "0" + "}" * depth)


@pytest.mark.long
@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("seed", range(NUM_FOLDERS))
def test_generated_folder_is_read_or_refused(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_process, "TEXT_S", 1.0)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin(tmp_path, seed)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < MORE_MEMORY_KIB


@pytest.mark.soak
@pytest.mark.usefixtures("sandbox")
def test_two_thousand_folders_are_read_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_process, "TEXT_S", 1.0)
    begin(tmp_path / "first", 0)  # imports what the others need
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(NUM_FOLDERS, NUM_FOLDERS + 2_000):
        folder = tmp_path / str(seed)
        begin(folder, seed)
        shutil.rmtree(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < MORE_MEMORY_KIB


def begin(folder: Path, seed: int) -> None:
    """A job's start with a spoiled folder: the model check, and a conversation on a replica that has no such check."""
    folder.mkdir(exist_ok=True)
    save_qwen3(folder)
    spoil(folder, random.Random(seed))
    spec = JobSpec.model_validate({"name": "spoiled", "model": {"source": str(folder)}})
    for act in (
        lambda: check(spec),
        lambda: converse(Wording.of_model(folder, spec.model)),
        lambda: texts_of_tokens(folder)([1, 2, 3]),
    ):
        only_refused(act, seed)


def check(spec: JobSpec) -> None:
    """As in its own process, which takes seconds to start: what it does not report is the platform's failure."""
    try:
        refuse_model(spec)
    except (ValueError, OSError, ImportError, TextsUnavailable, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - model_check_child refuses the folder for it
        return


def converse(wording: Wording) -> None:
    prompt = Prompt(split="train", ordinal=0, text="1" * 40, facts={})
    opened = wording.render_prompt(prompt)
    decoded = wording.decode(opened.ids[:100])
    wording.render_observation(
        prompt, opened.text, [Turn(text=decoded.turn.text)], [Observation(text="2", role="tool")]
    )


def only_refused(act: Callable[[], object], seed: int) -> None:
    """Any exception but a `ValueError` would end the replica, or count as the platform's."""
    try:
        act()
    except ValueError as error:
        assert str(error), f"seed {seed}"
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
