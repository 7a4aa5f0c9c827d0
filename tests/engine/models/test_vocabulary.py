"""A teacher whose vocabulary does not match the model's is refused by its files, before anything is loaded."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.live.run.model_source import refuse_teacher_vocabulary
from engine.models.loading import DEMO_FOLDER
from engine.models.tokenizer import Tokenizer
from engine.models.vocabulary import refuse_vocabulary_mismatch
from engine.spec.job import JobSpec


def other(folder: Path, **changed: Any) -> Path:
    """The demo model's files without its weights, changed in config.json."""
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        shutil.copy(DEMO_FOLDER / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))
    return folder


def refuse(teacher: Path) -> None:
    refuse_vocabulary_mismatch(DEMO_FOLDER, teacher, words_of=lambda folder: Tokenizer.from_folder(folder).words())


def with_words(folder: Path, swap: tuple[str, str]) -> Path:
    """Swaps the ids of two words."""
    text = (other(folder) / "tokenizer.json").read_text()
    raw = json.loads(text)
    words = raw["model"]["vocab"]
    words[swap[0]], words[swap[1]] = words[swap[1]], words[swap[0]]
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    return folder


@pytest.mark.parametrize("changed", [{}, {"vocab_size": 256, "hidden_size": 4_096, "num_hidden_layers": 40}])
def test_teacher_may_have_another_shape_and_padded_table(tmp_path: Path, changed: dict[str, Any]) -> None:
    refuse(other(tmp_path, **changed))


@pytest.mark.parametrize(("field", "value"), [("vocab_size", 130), ("max_position_embeddings", 255)])
def test_teacher_with_fewer_tokens_or_shorter_context_is_refused(tmp_path: Path, field: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"^algorithm\.teacher\.source: .*{field} must be at least .*got {value}"):
        refuse(other(tmp_path, **{field: value}))


def test_teacher_with_swapped_words_is_refused_by_token(tmp_path: Path) -> None:
    words = json.loads((DEMO_FOLDER / "tokenizer.json").read_text())["model"]["vocab"]
    first, second = sorted(words, key=lambda word: int(words[word]))[5:7]
    message = rf"token {words[first]} is '.+' in the model and '.+' in {tmp_path.name}"
    with pytest.raises(ValueError, match=message) as refusal:
        refuse(with_words(tmp_path, (first, second)))
    assert repr(first) in str(refusal.value) and repr(second) in str(refusal.value)


def test_a_teacher_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"algorithm\.teacher\.source: .* must have a config\.json"):
        refuse(tmp_path / "absent")


def test_every_training_job_with_a_teacher_is_checked(tmp_path: Path) -> None:
    def spec(**parts: Any) -> JobSpec:
        return JobSpec.model_validate({"name": "x", "algorithm": {"teacher": {"source": str(tmp_path)}}, **parts})

    with pytest.raises(ValueError, match=r"algorithm\.teacher\.source"):
        refuse_teacher_vocabulary(spec())
    refuse_teacher_vocabulary(spec(training={"steps": 0}))
    refuse_teacher_vocabulary(JobSpec(name="x"))
    other(tmp_path)
    refuse_teacher_vocabulary(spec())
