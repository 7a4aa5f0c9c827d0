"""Display texts for states, phases, reasons, failures and events.

Invariant: an unknown value is shown as is, never hidden; states and phases may grow.
"""

from collections.abc import Mapping

from backend.jobs.models import TERMINAL_STATES, JobState

STATE_MEANING: Mapping[str, str] = {
    JobState.VALIDATING: "is being checked",
    JobState.QUEUED: "waits for devices",
    JobState.STARTING: "has devices; the engine is starting",
    JobState.RUNNING: "is training, or evaluating",
    JobState.RECOVERING: "had a fault and is resuming from its last checkpoint",
    JobState.PAUSING: "is saving its state to pause",
    JobState.PAUSED: "holds no devices and can be resumed",
    JobState.STOPPING: "is releasing its devices",
    JobState.SUCCEEDED: "has finished",
    JobState.FAILED: "has stopped on an error",
    JobState.CANCELLED: "was cancelled",
}

PHASES: Mapping[str, str] = {
    "provisioning": "starting processes",
    "loading_weights": "loading weights",
    "evaluating": "evaluating",
    "training": "training",
    "checkpointing": "saving a checkpoint",
    "finalizing": "finishing",
}

REASONS: Mapping[str, str] = {
    "not_evaluated_yet": "not evaluated yet",
    "exceeds_max": "needs more devices than available",
    "team_ceiling": "team quota in use",
    "behind_priority": "behind an older job of your team",
    "pool_full": "pool is full",
    "backfill_hold": "devices reserved for an older job",
    "reserved_by_others": "free devices are reserved by other teams",
    "preemption_in_progress": "devices are being freed",
    "pool_closed": "pool is closed",
    "maintenance": "maintenance in progress",
    "no_sandbox": "no node of the pool has the required sandbox",
    "backoff_until": "waiting to retry after a failed start",
    "budget": "monthly budget in use",
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
    "alarm_ended": "Alarm ended",
    "fault_detected": "Fault",
    "request_acknowledged": "Request acknowledged",
    "run_finished": "Run finished",
    "cluster_stopped": "Cluster stopped it",
}

ACTIVE_STATES: tuple[str, ...] = tuple(state for state in JobState.values if state not in TERMINAL_STATES)


def plain(word: str, known: Mapping[str, str]) -> str:
    return known.get(word) or word.replace("_", " ")
