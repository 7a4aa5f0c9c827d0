"""Messages between replicas and environment workers. Bodies only: no brain ever sees these.

Invariant: an ask is a state, not a change. The same ask again (a lost answer, a trajectory that moved to another
replica) joins the one in progress or is answered from memory; the answer goes to whoever asked last.
"""

from dataclasses import dataclass, field
from hashlib import sha256

from engine.environments.port import Observation, Prompt, Turn, Verdict
from engine.pickling import pickled_by_values
from engine.pipeline.messages.addresses import Address
from engine.pipeline.records import Failure, SampleKey

Said = Prompt | Observation | Verdict | Failure

AskId = tuple[SampleKey, int, str]
"""A trajectory, how many turns it has, and what was said in them: the same sample may be told again elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    by: Address
    key: SampleKey
    prompt: Prompt | None
    """None: it is the prompt that is asked for."""
    turns: tuple[Turn, ...]
    is_truncated: bool = False
    """The model cannot take another turn: the environment must return a verdict."""
    said: str = field(init=False)
    """A digest of the turns and of `is_truncated`, computed once by the sender."""

    def __post_init__(self) -> None:
        texts = [turn.text for turn in self.turns] + ["truncated"] * self.is_truncated
        said = sha256("\0".join(texts).encode(errors="surrogatepass"))
        object.__setattr__(self, "said", said.hexdigest()[:16])

    @property
    def id(self) -> AskId:
        return (self.key, len(self.turns), self.said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    id: AskId
    said: Said
    seconds: float = 0.0
    """From the ask until the answer."""
    waited_s: float = 0.0
    """Of these, without being worked on: in line, for a core, for a free process."""
    num_before: int = 0
    """Asks that its worker had not answered when it came."""


pickled_by_values(Address, Prompt, Verdict, Ask, Answer)
