"""A simulated replica's report to the driver: its progress, without values that are only displayed."""

from engine.pipeline.messages.to_driver import ReplicaObserved


def observed(
    replica: int, incarnation: int, version: int, num_decoded: int, *, num_open: int, at: float
) -> ReplicaObserved:
    """`num_open`: open samples."""
    return ReplicaObserved(
        replica=replica,
        incarnation=incarnation,
        version=version,
        observed_at=at,
        spans=(),
        kv_used=0.0,
        num_running=num_open,
        num_waiting=0,
        num_with_environment=0,
        num_prefilled=0,
        num_decoded=num_decoded,
    )
