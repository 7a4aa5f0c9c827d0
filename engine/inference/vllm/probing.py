"""A probe in vLLM: the log-probs of one prompt, computed while all other sequences pause.

A probe is an ordinary request, which every worker splits, batches and computes like any other. During its one step the
scheduler has no other request: sequences in flight keep their blocks, get no token from weights that are not verified
yet, and continue afterwards.

Invariants:
- a probe takes no block from a sequence; if too few are free, it reads fewer tokens;
- a probe reads no page of another request, and no other request finds its pages.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

NAME: Final = "probe"


def row_logprobs(llm: Any, token_ids: Sequence[int], adapter: Any = None) -> tuple[float, ...]:
    """The log-prob of each token but the first, given all before it. No step may be in progress."""
    from vllm import SamplingParams

    core, cache = llm.engine_core.engine_core, llm.vllm_config.cache_config
    num_free = core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() * cache.block_size
    row = list(token_ids[: min(llm.model_config.max_model_len, num_free) - 1])  # room for its one token
    if len(row) < 2:
        return ()
    llm.collective_rpc("report_prompt_logprobs")
    sampling = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False, prompt_logprobs=0)
    prompt = {"prompt_token_ids": row, "cache_salt": NAME}
    request = llm.input_processor.process_inputs(
        NAME, prompt, sampling, supported_tasks=llm.get_supported_tasks(), lora_request=adapter
    )
    llm.input_processor.assign_request_id(request)
    with _alone(core.scheduler):
        llm.engine_core.add_request(request)
        scores = _run(llm.engine_core, core)
        if scores is None:  # too few blocks are free
            llm.engine_core.abort_requests([request.request_id])
        list(llm.finish())  # with asynchronous scheduling the core has begun an empty step
    if scores is None:
        return ()
    (_, logprobs_NK, *_) = scores
    return tuple(logprobs_NK[:, 0].tolist())


def _run(client: Any, core: Any) -> Any:
    """The prompt's scores. None: the request could not start."""
    scores = None
    while core.scheduler.running or core.scheduler.waiting:
        for output in client.get_output().outputs:
            scores = output.new_prompt_logprobs_tensors if scores is None else scores
        if scores is None and not core.scheduler.running:
            return None
    return scores


@contextmanager
def _alone(scheduler: Any) -> Iterator[None]:
    from vllm.v1.core.sched.request_queue import create_request_queue

    held = {name: getattr(scheduler, name) for name in ("requests", "running", "waiting", "kv_holding_waiting")}
    # With a connector, vLLM waits for known requests that are in no queue as if they had ended: hide them.
    scheduler.requests, scheduler.running = {}, []
    scheduler.waiting, scheduler.kv_holding_waiting = (create_request_queue(scheduler.policy) for _ in range(2))
    try:
        yield
    finally:
        for name, queue in held.items():
            setattr(scheduler, name, queue)
