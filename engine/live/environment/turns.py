"""Messages between the bodies of replicas and environment workers. No brain sees them.

Invariant: requests are idempotent. A repeated `Ask` (its answer was lost, or its trajectory moved to another replica)
joins the call in progress or is answered from memory; the answer goes to the last requester.
"""

from dataclasses import dataclass, field
from hashlib import sha256

from engine.environments.port import Observation, Prompt, Turn, Verdict
from engine.pipeline.messages.addresses import Address
from engine.pipeline.records import Failure, SampleKey
from engine.process.pickling import pickled_by_values

TurnResult = Prompt | Observation | Verdict | Failure

AskId = tuple[SampleKey, int, str]
"""A trajectory, its number of turns, and a digest of them: a sample may be generated again on another replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    by: Address
    key: SampleKey
    prompt: Prompt | None
    """None: the request is for the prompt itself."""
    turns: tuple[Turn, ...]
    is_truncated: bool = False
    """The model cannot take another turn: the environment must return a verdict."""
    digest: str = field(init=False)
    """A digest of the turns and of `is_truncated`, computed once by the sender."""

    def __post_init__(self) -> None:
        texts = [turn.text for turn in self.turns] + ["truncated"] * self.is_truncated
        hashed = sha256("\0".join(texts).encode(errors="surrogatepass"))
        object.__setattr__(self, "digest", hashed.hexdigest()[:16])

    @property
    def id(self) -> AskId:
        return (self.key, len(self.turns), self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    id: AskId
    result: TurnResult
    seconds: float = 0.0
    """From the request to the answer."""
    waited_s: float = 0.0
    """Part of `seconds` spent waiting: in the queue, for a core, for a free process."""
    num_before: int = 0
    """Unanswered requests of its worker when it arrived."""


pickled_by_values(Address, Prompt, Verdict, Ask, Answer)
