"""The cost of a chat template that rewrites history: how many more tokens a conversation trains.

    by the template   prompt turn │ prompt turn' turn │ prompt turn' turn' turn │ …   a segment for each turn
    as generated      prompt turn turn turn …                                         one segment

Both forms are measured on the job's first question with answers and observations of typical lengths, since nothing was
generated yet. An answer begins with a thought if the model's vocabulary has thoughts and the template's opening does
not close them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from engine.environments.port import Observation, Prompt, Role, Turn
from engine.environments.registry import observed_as
from engine.live.rollout.wording import Wording, open_model_texts
from engine.live.texts.model_texts import words_of
from engine.spec.environments.params import ENVIRONMENTS
from engine.spec.job import EnvironmentSpec, JobSpec, ModelSpec

STAND_IN: Final = Prompt(split="train", ordinal=0, text="question", facts={})
USUAL_TURNS: Final = 8
"""For an environment without a limit of turns."""
MOST_TURNS: Final = 32
"""With a template that rewrites history, the work grows with the square."""
ANSWER: Final = "the answer is" + " the" * 100
OBSERVATION: Final = "the" + " the" * 20
THOUGHT: Final = f"<think>\nthe{' the' * 200}\n</think>\n\n"
WORTH_A_WARNING: Final = 1.5


def warnings_of_history(spec: JobSpec, folder: Path, question: Prompt) -> tuple[str, ...]:
    role = observed_as(spec.environment)
    if role is None or spec.only_evaluates or not Wording.of_model(folder, spec.model).is_by_template:
        return ()
    if spec.model.history == "as_generated":
        return ()
    num_turns = turns_of(spec.environment)
    kept = spec.model.model_copy(update={"history": "as_generated"})
    try:
        rendered, generated = (_read_tokens(folder, model, question, role, num_turns) for model in (spec.model, kept))
    except ValueError:  # the template hides earlier answers, so as_generated is not possible
        return ()
    factor = rendered / generated
    if factor < WORTH_A_WARNING:
        return ()
    return (
        "The chat template changes earlier answers, so each turn trains as a segment of its own: a conversation of "
        f"{num_turns} turns like this job's costs {factor:.1f} times the tokens. Set model.history to as_generated to "
        "read and train each conversation once.",
    )


def _read_tokens(folder: Path, model: ModelSpec, question: Prompt, role: Role, num_turns: int) -> int:
    """The tokens of all segments of one conversation."""
    wording, tokenizer = Wording.of_model(folder, model), open_model_texts(folder, model).tokenizer
    opened = wording.render_prompt(question)
    answer = _answer_to(opened.text, words_of(folder))
    ids = [*tokenizer.encode(answer, goes_on=True), tokenizer.eos_ids[0]]
    text, total, segment = opened.text, 0, len(opened.ids)
    turns, observed = list[Turn](), list[Observation]()
    for number in range(num_turns):
        decoded = wording.decode(ids)
        turns.append(decoded.turn)
        text, segment = text + decoded.exact_text, segment + len(ids)
        if number + 1 == num_turns:
            break
        observed.append(Observation(text=OBSERVATION, role=role))
        rendered = wording.render_observation(question, text, turns, observed)
        if rendered.starts_segment:
            total, segment, text = total + segment, 0, ""
        text, segment = text + rendered.text, segment + len(rendered.ids)
    return total + segment


def _answer_to(opening: str, words: Mapping[str, int]) -> str:
    thinks = "</think>" in words and not opening.rstrip().endswith("</think>")
    return THOUGHT + ANSWER if thinks else ANSWER


def turns_of(environment: EnvironmentSpec) -> int:
    """The most turns of a conversation, by the environment's parameters."""
    rows = ENVIRONMENTS[environment.name].params
    limits = [environment.params.get(name, rows[name].default) for name in ("max_turns", "turns") if name in rows]
    return min(int(limits[0]), MOST_TURNS) if limits else USUAL_TURNS
