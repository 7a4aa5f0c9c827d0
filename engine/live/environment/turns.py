"""Messages between replicas and environment workers. Bodies only: no brain ever sees these.

Invariant: an ask is a state, not a change. The same ask again (a lost answer, a trajectory that moved to another
replica) joins the one in progress or is answered from memory; the answer goes to whoever asked last.
"""

from dataclasses import dataclass
from hashlib import sha256

from engine.environments.port import Observation, Prompt, Turn, Verdict
from engine.pipeline.messages.addresses import Address
from engine.pipeline.records import Failure, SampleKey

AskId = tuple[SampleKey, int, str]
"""A trajectory, how many turns it has, and what was said in them: the same sample may be told again elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    by: Address
    key: SampleKey
    prompt: Prompt | None
    """None: it is the prompt that is asked for."""
    turns: tuple[Turn, ...]

    @property
    def id(self) -> AskId:
        said = sha256("\0".join(turn.text for turn in self.turns).encode(errors="surrogatepass"))
        return (self.key, len(self.turns), said.hexdigest()[:16])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    id: AskId
    said: Prompt | Observation | Verdict | Failure
    seconds: float = 0.0
    """From the ask until the answer."""
