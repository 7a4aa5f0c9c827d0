"""One word for one thing, in code, API and screens."""

from engine.spec.schedules import all_schedules

GLOSSARY: tuple[tuple[str, str], ...] = (
    ("job", "What you submitted. It has one spec, which never changes."),
    ("attempt", "One execution of a job on the engine. A job that loses its machine gets another attempt."),
    ("step", "One batch that the trainer learns from. It makes a version."),
    ("update", "One move of the weights by the optimizer; a step makes one or several."),
    ("prompt", "A question that the model is asked."),
    ("group", "The samples of one prompt. Their mean reward is what each of them is measured against."),
    ("trajectory", "One sample, with all its turns."),
    ("reward", "How good a trajectory was, as the environment judges it."),
    ("advantage", "How much better than its group a trajectory did. Its sign says whether it is encouraged."),
    ("teacher", "A frozen model that says of every token how likely it would have been; the policy learns to agree."),
    ("version", "A set of weights, numbered by the step that made it."),
    ("staleness", "The trainer's version when it consumes a trajectory, less the version that generated it."),
    ("replica", "One rollout engine with its own weights and KV cache."),
    ("relay", "The worker on a host that holds weight versions and serves them to that host's replicas."),
    ("repack", "Moving the unfinished tails of some replicas onto others of the same version."),
    ("schedule", f"Who waits for whom. {all_schedules()}"),
    ("environment", "What is learned: prompts, turns, reward."),
    ("pool", "A set of like devices. A team may use a quota of it."),
    ("device", "One accelerator of a pool; on a CPU pool, one slot."),
)
