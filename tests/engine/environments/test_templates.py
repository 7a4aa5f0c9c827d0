"""Templates: each one's environment works as its spec describes, in the built-in model's vocabulary."""

import pytest

from backend.jobs.submitting.templates import gallery, templates
from engine.environments.port import Observation, Turn, Verdict
from engine.environments.registry import make_environment
from engine.environments.running_sums import MODULUS, answer_text, running_sums
from engine.models.demo_tokenizer import UNKNOWN, build_tokenizer
from engine.spec.schedules import SCHEDULES
from tests.engine.environments.sandboxed import sandbox

__all__ = ["sandbox"]

TOKENIZER = build_tokenizer()


def test_templates_cover_schedules_and_environments() -> None:
    specs = templates().values()
    assert {spec.schedule.name for spec in specs} == set(SCHEDULES)
    assert {"running_sums", "tool_sums", "jsonl", "graded", "custom"} == {spec.environment.name for spec in specs}
    assert any(spec.trainer.lora_rank for spec in specs) and any(spec.only_evaluates for spec in specs)
    assert len({spec.name for spec in specs}) == len(gallery()) >= 8


@pytest.mark.parametrize("name", templates())
def test_right_answers_are_paid_in_full_and_others_are_not(name: str, request: pytest.FixtureRequest) -> None:
    if templates()[name].environment.functions:
        request.getfixturevalue("sandbox")
    environment = make_environment(templates()[name].environment, seed=0, data_folder=None)
    for ordinal in range(3):
        prompt = environment.prompt("train", ordinal)
        assert UNKNOWN not in TOKENIZER.encode(prompt.text).tokens
        rights: list[Turn] = []
        total = 0
        question: str = prompt.text
        while True:
            terms = [int(term) for term in question.replace("=", "").split("+") if term.strip()]
            chain = [(total + step) % MODULUS for step in running_sums(terms)]
            total = chain[-1]
            rights.append(Turn(text=answer_text(chain)))
            answer = environment.respond(prompt, rights)
            if isinstance(answer, Verdict):
                break
            assert isinstance(answer, Observation)
            assert UNKNOWN not in TOKENIZER.encode(answer.text).tokens
            question = answer.text
        assert answer.reward == 1.0, answer.remark
        wrong = environment.respond(prompt, [*rights[:-1], Turn(text=answer_text([(total + 50) % MODULUS]))])
        assert isinstance(wrong, Verdict) and wrong.reward < 1.0


def test_built_in_questions_have_right_answers() -> None:
    environment = make_environment(templates()["own_questions"].environment, seed=0, data_folder=None)
    for ordinal in range(500):
        prompt = environment.prompt("train", ordinal)
        terms = [int(term) for term in prompt.text.replace("=", "").split("+")]
        assert prompt.facts["answer"] == str(sum(terms) % MODULUS)
