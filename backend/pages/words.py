"""What the pages say: a state, a reason, a failure in words that help.

Invariant: a word that is not in these lists is shown as it came, never hidden; states and phases may grow.
"""

from collections.abc import Mapping

from backend.jobs.models import TERMINAL_STATES, JobState

STATE_MEANING: Mapping[str, str] = {
    JobState.VALIDATING: "is being checked",
    JobState.QUEUED: "waits for devices",
    JobState.STARTING: "has devices; the engine is coming up",
    JobState.RUNNING: "is training",
    JobState.RECOVERING: "lost something and is going on from its last checkpoint",
    JobState.PAUSING: "is saving its state to pause",
    JobState.PAUSED: "holds no devices and can go on",
    JobState.STOPPING: "is letting go of its devices",
    JobState.SUCCEEDED: "has finished",
    JobState.FAILED: "has stopped on an error",
    JobState.CANCELLED: "was cancelled",
}

PHASES: Mapping[str, str] = {
    "provisioning": "getting processes",
    "loading_weights": "loading weights",
    "evaluating": "evaluating",
    "training": "training",
    "checkpointing": "saving a checkpoint",
    "finalizing": "finishing",
}

REASONS: Mapping[str, str] = {
    "not_evaluated_yet": "not looked at yet",
    "exceeds_max": "asks for more than there is",
    "team_ceiling": "team quota in use",
    "behind_priority": "behind an older job of your team",
    "pool_full": "pool is full",
    "backfill_hold": "devices kept for an older job",
}

ADVICE: Mapping[str, str] = {
    "user_code": "Your own code raised an error. The message below is what it said; fix it and submit the job again.",
    "reward": "The reward could not be computed. Try the environment on a few responses by hand, then submit again.",
    "config": "The engine cannot run this spec. Change the setting that the message names and submit again.",
    "data": "The prompts or the model could not be read. Check that the cluster can reach the place in the message.",
    "capacity": "The cluster could not give what the job asked for. Ask for fewer replicas, or try again later.",
    "infrastructure": "A machine or the network failed and the retries are used up. Nothing is wrong with your job: "
    "submit it again.",
    "platform": "This is our fault, not yours. Submit the job again; if it fails again, tell us its id.",
    "timeout": "The job reached its max_runtime_s. Raise it, or ask for fewer steps; the last checkpoint is kept.",
    "budget": "The team's budget is used up. An administrator can raise it.",
}

EVENTS: Mapping[str, str] = {
    "submitted": "Submitted",
    "state_changed": "State changed",
    "driver_started": "Driver started",
    "phase_changed": "Phase",
    "pipeline_ready": "Pipeline ready",
    "evaluated": "Evaluated",
    "checkpoint_saved": "Checkpoint saved",
    "fault_detected": "Fault",
    "request_acknowledged": "Request acknowledged",
    "run_finished": "Run finished",
}

ACTIVE_STATES: tuple[str, ...] = tuple(state for state in JobState.values if state not in TERMINAL_STATES)


def plain(word: str, known: Mapping[str, str]) -> str:
    return known.get(word) or word.replace("_", " ")
