"""The glossary on the help page: one word per concept, as in code and API."""

from engine.spec.schedules import all_schedules

GLOSSARY: tuple[tuple[str, str], ...] = (
    ("job", "A submitted spec and its execution. The spec never changes."),
    ("attempt", "One execution of a job on the engine. A job that loses its machine gets another attempt."),
    ("step", "One batch that the trainer trains on. Each step produces a version."),
    ("update", "One optimizer step on the weights. A step has one or more updates."),
    ("prompt", "A question for the model."),
    ("group", "The samples of one prompt. Each is compared with their mean reward."),
    ("trajectory", "One sample, with all its turns."),
    ("reward", "How good a trajectory was, as the environment judges it."),
    ("advantage", "How much better a trajectory is than its group. If positive, it is reinforced."),
    ("teacher", "A frozen model that scores every token; the policy learns to match it."),
    ("version", "A set of weights, numbered by the step that produced it."),
    ("staleness", "The trainer's version when it consumes a trajectory, less the version that generated it."),
    ("replica", "One rollout engine with its own weights and KV cache."),
    ("relay", "The worker on a host that holds weight versions and serves them to that host's replicas."),
    ("repack", "Moving the unfinished tails of some replicas onto others of the same version."),
    ("schedule", f"How generation and training wait for each other. {all_schedules()}"),
    ("environment", "What is learned: prompts, turns, reward."),
    ("pool", "A set of devices of one kind. Teams have quotas in it."),
    ("device", "One accelerator of a pool; on a CPU pool, one slot."),
)
