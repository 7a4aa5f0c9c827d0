"""vLLM's engine without its front end: requests go straight to its core, tokens come straight from it.

The front end creates four objects for every token, for texts and statistics that are not used here: at 256 rows that
takes longer than all our own code.

    step       returns the next tokens; with asynchronous scheduling (on a GPU) the device already computes later ones
    finish     returns those later tokens too

Invariant: after `finish` nothing is being computed, and every token that the weights have made has been returned.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import FinishReason
from vllm.v1.engine.llm_engine import LLMEngine


class TokenOutput(NamedTuple):
    """One token of one request."""

    name: str
    token: int
    logprob: float
    num_cached_tokens: int | None
    """Cached tokens of the context; set with the first token."""
    ended: Literal["stop", "length"] | None
    routes: Any
    """In vLLM's form (routes.py), or None."""


ENDED: dict[FinishReason, Literal["stop", "length"]] = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class QuietEngine(LLMEngine):  # type: ignore[misc]  # vLLM is not in the environment that is checked
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._names: dict[str, str] = {}  # by vLLM's own id
        self._ids: dict[str, str] = {}

    def add_request(self, request_id: str, prompt: Any, params: Any, **more: Any) -> str:
        """Returns vLLM's own id of the request."""
        request = self.input_processor.process_inputs(
            request_id, prompt, params, supported_tasks=self.get_supported_tasks(), **more
        )
        self.input_processor.assign_request_id(request)
        own: str = request.request_id
        self._names[own], self._ids[request_id] = request_id, own
        self.engine_core.add_request(request)
        return own

    def abort_request(self, request_ids: list[str], internal: bool = False) -> None:
        self.engine_core.abort_requests([self._forget(name) for name in request_ids if name in self._ids])

    def step(self) -> Iterator[TokenOutput]:
        return self._tokens(self.engine_core.get_output())

    def finish(self) -> Iterator[TokenOutput]:
        """Yields nothing without asynchronous scheduling, as on a CPU."""
        core = self.engine_core.engine_core
        if not core.batch_queue:
            return
        core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
        while core.batch_queue:
            yield from self.step()
        core.scheduler.set_pause_state(PauseState.UNPAUSED)

    def _tokens(self, outputs: Any) -> Iterator[TokenOutput]:
        for output in outputs.outputs:
            name = self._names.get(output.request_id)
            if name is None:  # the request was aborted during the step
                continue
            reason = output.finish_reason
            if reason is not None:
                self._forget(name)
            first = output.prefill_stats
            yield TokenOutput(
                name,
                output.new_token_ids[0],
                output.new_logprobs.logprobs.item(0),
                None if first is None else first.num_cached_tokens,
                None if reason is None else ENDED[reason],
                output.routed_experts,
            )

    def _forget(self, name: str) -> str:
        own = self._ids.pop(name)
        del self._names[own]
        return own
