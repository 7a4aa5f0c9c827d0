"""What vLLM says of a probe: the log-probs of one prompt, read while everything else stands still.

It is a request like any other, so it is cut, batched and computed as those are, on every worker. For its one step the
scheduler knows of nobody else: sequences in flight keep their blocks, get no token of weights that nobody has compared
yet, and go on where they were.

Invariants:
- it takes no block from a sequence; where too few are free, fewer tokens are read;
- no page of another request is read, and its own are found by nobody.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

NAME: Final = "probe"


def row_logprobs(llm: Any, token_ids: Sequence[int], adapter: Any = None) -> tuple[float, ...]:
    """Of each but the first, after all before it. No step may be under way."""
    from vllm import SamplingParams

    core, cache = llm.engine_core.engine_core, llm.vllm_config.cache_config
    num_free = core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() * cache.block_size
    row = list(token_ids[: min(llm.model_config.max_model_len, num_free) - 1])  # it must say a token, too
    if len(row) < 2:
        return ()
    llm.collective_rpc("tell_prompts_as_logprobs")
    asked = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False, prompt_logprobs=0)
    prompt = {"prompt_token_ids": row, "cache_salt": NAME}
    request = llm.input_processor.process_inputs(
        NAME, prompt, asked, supported_tasks=llm.get_supported_tasks(), lora_request=adapter
    )
    llm.input_processor.assign_request_id(request)
    with _alone(core.scheduler):
        llm.engine_core.add_request(request)
        said = _answer(llm.engine_core, core)
        if said is None:  # what is free is not enough for it
            llm.engine_core.abort_requests([request.request_id])
        list(llm.finish())  # a core that is a step ahead has begun one of nobody
    if said is None:
        return ()
    (_, logprobs_NK, *_) = said
    return tuple(logprobs_NK[:, 0].tolist())


def _answer(client: Any, core: Any) -> Any:
    """None: it was not begun."""
    said = None
    while core.scheduler.running or core.scheduler.waiting:
        for output in client.get_output().outputs:
            said = output.new_prompt_logprobs_tensors if said is None else said
        if said is None and not core.scheduler.running:
            return None
    return said


@contextmanager
def _alone(scheduler: Any) -> Iterator[None]:
    from vllm.v1.core.sched.request_queue import create_request_queue

    held = {name: getattr(scheduler, name) for name in ("requests", "running", "waiting", "kv_holding_waiting")}
    # With a connector, whoever is known and in no queue counts as one that ended and has to be waited for.
    scheduler.requests, scheduler.running = {}, []
    scheduler.waiting, scheduler.kv_holding_waiting = (create_request_queue(scheduler.policy) for _ in range(2))
    try:
        yield
    finally:
        for name, queue in held.items():
            setattr(scheduler, name, queue)
