"""A teacher is asked only about tokens that it knows: refused by its files, before anything is loaded."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.live.run.model_source import refuse_a_teacher_of_other_words
from engine.models.loading import DEMO_FOLDER
from engine.models.vocabulary import refuse_other_words
from engine.spec.job import JobSpec


def other(folder: Path, **changed: Any) -> Path:
    """The demo model's files without its weights, changed in config.json."""
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        shutil.copy(DEMO_FOLDER / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))
    return folder


def with_words(folder: Path, swap: tuple[str, str]) -> Path:
    """Two words have changed places."""
    text = (other(folder) / "tokenizer.json").read_text()
    raw = json.loads(text)
    words = raw["model"]["vocab"]
    words[swap[0]], words[swap[1]] = words[swap[1]], words[swap[0]]
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    return folder


@pytest.mark.parametrize("changed", [{}, {"vocab_size": 256, "hidden_size": 4_096, "num_hidden_layers": 40}])
def test_a_teacher_with_the_models_words_may_have_any_shape_and_a_padded_table(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    refuse_other_words(DEMO_FOLDER, other(tmp_path, **changed))


@pytest.mark.parametrize(("field", "value"), [("vocab_size", 130), ("max_position_embeddings", 255)])
def test_one_that_knows_fewer_tokens_or_shorter_texts_is_refused(tmp_path: Path, field: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"^algorithm\.teacher\.source: .*{field} must be at least .*got {value}"):
        refuse_other_words(DEMO_FOLDER, other(tmp_path, **{field: value}))


def test_one_that_means_another_word_by_a_token_is_refused_with_that_token(tmp_path: Path) -> None:
    words = json.loads((DEMO_FOLDER / "tokenizer.json").read_text())["model"]["vocab"]
    first, second = sorted(words, key=lambda word: int(words[word]))[5:7]
    told = rf"token {words[first]} is '.+' to the model and '.+' to {tmp_path.name}"
    with pytest.raises(ValueError, match=told) as refused:
        refuse_other_words(DEMO_FOLDER, with_words(tmp_path, (first, second)))
    assert repr(first) in str(refused.value) and repr(second) in str(refused.value)


def test_a_teacher_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"algorithm\.teacher\.source: .* must have a config\.json"):
        refuse_other_words(DEMO_FOLDER, tmp_path / "absent")


def test_it_is_asked_of_every_job_that_trains_with_one(tmp_path: Path) -> None:
    def spec(**parts: Any) -> JobSpec:
        return JobSpec.model_validate({"name": "x", "algorithm": {"teacher": {"source": str(tmp_path)}}, **parts})

    with pytest.raises(ValueError, match=r"algorithm\.teacher\.source"):
        refuse_a_teacher_of_other_words(spec())
    refuse_a_teacher_of_other_words(spec(training={"steps": 0}))
    refuse_a_teacher_of_other_words(JobSpec(name="x"))
    other(tmp_path)
    refuse_a_teacher_of_other_words(spec())
