"""Any task of reasoning-gym by name, judged by the task's own scorer, repaired where it pays guesses.

Invariants:
- a question's index is drawn from (seed, split, ordinal), and the question is used only if its text hashes to the
  split; so no question is in both splits, whatever the seed;
- reasoning-gym is imported in the sandbox only, and no scorer evaluates what the model wrote (inside/gym.py);
- every score has a process of its own, so no answer can change how the next one is judged; an answer that breaks its
  scorer has reward 0;
- questions and scores come from different processes, so a scorer that hangs delays no question.
"""

import json
import random
from collections.abc import Sequence
from typing import ClassVar, Final

from engine.environments.judging.graders import SandboxedGrader, SpoiltByText, TextJudge, inside_file
from engine.environments.params import ParamReader, Params
from engine.environments.port import GraderError, Prompt, Split, Turn, Verdict
from engine.environments.sandbox.capacity import host_capacity
from engine.environments.splits import check_place, split_of_text
from engine.spec.environments.params import check_task

HELD_OUT_SHARE: Final = 0.25  # a held-out question takes four draws on average, of up to a tenth of a second each
MAX_DRAWS: Final = 200
PACKAGES: Final = ("reasoning-gym",)
MEMORY_BYTES: Final = 1 << 30
QUESTION_TIMEOUT_S: Final = 60.0
IMPORTS: Final = ("chance.py", "expressions.py", "judging.py", "repairs.py")


class ReasoningGym:
    name: ClassVar[str] = "reasoning_gym"

    def __init__(self, *, seed: int, task: str, params: Params, timeout_s: float) -> None:
        self._seed = seed
        self._task = task
        self._params = json.dumps(dict(params), sort_keys=True)
        main = f"{inside_file('gym.py')}\n\nwarm_up({task!r}, {self._params!r})\n"
        self._questions = SandboxedGrader(
            main=main,
            imports={name: inside_file(name) for name in IMPORTS},
            timeout_s=QUESTION_TIMEOUT_S,
            packages=PACKAGES,
            memory_bytes=MEMORY_BYTES,
        )
        self._scores = TextJudge(
            main=main,
            imports=IMPORTS,
            function="score",
            timeout_s=timeout_s,
            packages=PACKAGES,
            memory_bytes=MEMORY_BYTES,
            size=host_capacity().computing,
        )
        self._check()

    @classmethod
    def from_params(cls, seed: int, params: Params, timeout_s: float) -> "ReasoningGym":
        reader = ParamReader(cls.name, params)
        task = reader.text("task")
        reader.check(check_task)
        return cls(seed=seed, task=task, params=reader.the_rest(), timeout_s=timeout_s)

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        check_place(split, ordinal)
        rng = random.Random(f"reasoning_gym/{self._seed}/{split}/{ordinal}")
        for _ in range(MAX_DRAWS):
            index = rng.randrange(2**31 - 1)
            text = str(self._questions.call("question", self._task, self._params, index))
            if split_of_text(text, HELD_OUT_SHARE) == split:
                return Prompt(split=split, ordinal=ordinal, text=text, facts={"index": index})
        raise GraderError(f"reasoning_gym: {self._task} has too few questions for the split {split}", retryable=False)

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
        if len(turns) != 1:
            raise ValueError(f"turns: reasoning_gym has exactly one, got {len(turns)}")
        answer = turns[0].text.strip()
        try:
            score = self._scores.judge(self._task, self._params, prompt.facts["index"], answer)
        except SpoiltByText as spoilt:
            return spoilt.verdict
        if not isinstance(score, int | float) or not 0 <= score <= 1:
            return SpoiltByText("its score is not a number from 0 to 1").verdict
        return Verdict(reward=float(score), parts={"score": float(score)}, trusted=True, remark=f"score {score:g}")

    def _check(self) -> None:
        try:
            tasks = self._questions.call(
                "tasks"
            )  # the process starts with the task's dataset, made with the parameters
            assert isinstance(tasks, list)
            if self._task not in tasks:
                raise ValueError(f"reasoning_gym: task: unknown name {self._task!r}; choose from {', '.join(tasks)}")
            self._questions.call("question", self._task, self._params, 0)
        except GraderError as error:
            if error.is_of_platform:
                raise
            raise ValueError(f"reasoning_gym: {self._task} does not accept {self._params}: {error}") from error
