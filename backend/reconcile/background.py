"""Periodic tasks of reconciliation. The lease prevents two at once, and the next tick replaces a lost one."""

from celery import shared_task

from backend.clock import database_now
from backend.jobs.attempts.launcher import ray_of
from backend.jobs.generation.raising import keep_mark
from backend.reconcile import round as rounds
from backend.reconcile.ray_probes import inspect_ray_of, one_pool_of_each_ray

LOOK_WITHIN_S = 30.0  # by then the next tick has sent another


@shared_task(name="reconcile.reconcile")
def reconcile() -> None:
    keep_mark()
    rounds.reconcile(ray_of)


@shared_task(name="reconcile.sweep_zombies")
def sweep_zombies() -> None:
    rounds.sweep_zombies(ray_of)


@shared_task(name="reconcile.inspect_rays")
def inspect_rays() -> None:
    for pool_id in one_pool_of_each_ray():
        check_ray.apply_async((pool_id,), expires=LOOK_WITHIN_S)


@shared_task(name="reconcile.check_ray")
def check_ray(pool_id: str) -> None:
    inspect_ray_of(pool_id, ray_of, now=database_now())
