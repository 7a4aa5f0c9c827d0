"""Words of the pages: a state, a reason, a failure in words that help.

Invariant: a word that is not in these lists is shown as it came, never hidden; states and phases may grow.
"""

from collections.abc import Mapping

from backend.jobs.models import TERMINAL_STATES, JobState

STATE_MEANING: Mapping[str, str] = {
    JobState.VALIDATING: "is being checked",
    JobState.QUEUED: "waits for devices",
    JobState.STARTING: "has devices; the engine is coming up",
    JobState.RUNNING: "is training, or evaluating",
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
    "waiting_lender_fence": "other teams keep what is free",
    "preemption_in_progress": "devices are being freed for it",
    "pool_closed": "pool is closed",
    "maintenance": "the site is in maintenance",
    "no_sandbox": "no node of the pool has the sandbox that its environment needs",
    "backoff_until": "waits after a failed start",
    "budget": "budget of the month in use",
}

EVENTS: Mapping[str, str] = {
    "submitted": "Submitted",
    "state_changed": "State changed",
    "driver_started": "Driver started",
    "phase_changed": "Phase",
    "pipeline_ready": "Pipeline ready",
    "evaluated": "Evaluated",
    "checkpoint_saved": "Checkpoint saved",
    "alarm_raised": "Alarm",
    "alarm_ended": "Alarm over",
    "fault_detected": "Fault",
    "request_acknowledged": "Request acknowledged",
    "run_finished": "Run finished",
    "cluster_stopped": "Cluster stopped it",
}

ACTIVE_STATES: tuple[str, ...] = tuple(state for state in JobState.values if state not in TERMINAL_STATES)


def plain(word: str, known: Mapping[str, str]) -> str:
    return known.get(word) or word.replace("_", " ")
