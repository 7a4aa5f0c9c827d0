"""The platform's own causes of a failed run: the closed list of what is credited.

Invariants:
- a failure of class `infrastructure` names one of these causes; a failure without a named cause has another class;
- a symptom (no progress, every replica lost) is no cause: a customer's model, prompts or code may produce it.
"""

from enum import StrEnum


class PlatformCause(StrEnum):
    NODE_LOST = "node_lost"
    """A host left the cluster."""
    RAY_LOST = "ray_lost"
    """Ray itself failed, or cannot be reached."""
    UNREACHABLE = "unreachable"
    """The control plane or the store does not answer, or refuses this attempt."""
    STORAGE = "storage"
    """The platform's disk or object store refused a write."""
    NO_SANDBOX = "no_sandbox"
    """A host cannot start the sandbox for untrusted code."""
    DRIVER_STOPPED = "driver_stopped"
    """The driver received SIGTERM or SIGINT."""


def check_cause(failure_class: str | None, cause: PlatformCause | None) -> None:
    """For the messages that carry both: `infrastructure` and a named cause imply each other."""
    is_ours = failure_class == "infrastructure"
    assert is_ours == (cause is not None), f"failure class {failure_class} with cause {cause}"
