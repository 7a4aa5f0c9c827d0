"""Failures of an environment's calls: the error, the request, and who is to blame."""

from typing import Final

from engine.environments.border import shown, sound_text
from engine.environments.port import Blame, FailureKind, GraderError
from engine.live.environment.turns import Ask
from engine.pipeline.records import Failure

REASON_CHARACTERS: Final = 500


def failure_of(error: Exception, ask: Ask) -> Failure:
    kind: FailureKind = "error"
    blame = blamed(ask)
    if isinstance(error, GraderError):
        kind, blame = error.kind, error.blame
    reason = sound_text(f"{type(error).__name__}: {error}"[:REASON_CHARACTERS])
    return Failure(kind=kind, reason=f"{reason} ({shown_of(ask)})", blame=blame)


def hanging(ask: Ask, num_hanging: int) -> Failure:
    return Failure(kind="error", reason=f"{num_hanging} calls of the environment hang", blame=blamed(ask))


def blamed(ask: Ask) -> Blame:
    return "user_code" if ask.prompt is None else "reward"


def shown_of(ask: Ask) -> str:
    source = f"prompt {ask.key.group.split}/{ask.key.group.ordinal}"
    if ask.prompt is None:
        return source
    return f"{source}, {shown(ask.prompt.text)}, answered {shown(ask.turns[-1].text if ask.turns else '')}"
