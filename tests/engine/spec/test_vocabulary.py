"""Facts reduced to the names that another release knows."""

import json
from typing import Any

import pytest

from engine.spec.facts import BODIES, DECISIVE, FACT_NAMES, Fact, UnknownFact
from engine.spec.vocabulary import digest_of, needed_of, reduce_body

SPAN = {"doing": "decode", "start_s": -2.0, "end_s": -1.0}
REPLICA = {
    "replica": 0, "incarnation": 0, "version": 0, "kv_used": 0.5, "num_running": 1, "num_waiting": 0,
    "num_with_environment": 0, "num_prefilled": 1, "num_decoded": 1, "spans": [SPAN],
}  # fmt: skip


def read(body: dict[str, Any], **more: Any) -> Fact:
    return Fact.model_validate_json(json.dumps({"seq": 1, "at": "2026-01-01T00:00:00Z", "body": body} | more))


def test_names_are_kinds_fields_and_values_but_no_metrics() -> None:
    assert {"step_trained", "step_trained.ledger", "run_finished.cause=node_lost", "run_finished.outcome=paused"} <= (
        FACT_NAMES
    )
    assert {"trajectories_sampled.trajectories.turns.tool", "replicas_observed.replicas.spans.doing=idle"} <= FACT_NAMES
    assert not [name for name in FACT_NAMES if name.startswith("step_trained.metrics.")]
    assert DECISIVE <= FACT_NAMES


@pytest.mark.parametrize(
    ("body", "kept", "passed_over"),
    [
        ({"type": "moon_seen", "phase": 1}, {"type": "unknown", "kind": "moon_seen"}, ["moon_seen"]),
        ({"type": "phase_changed", "phase": "x"}, None, ["phase_changed.phase=x", "phase_changed"]),
        (
            {"type": "step_trained", "step": 1, "metrics": {"a/b": 1.0}, "tokens": 9},
            {"type": "step_trained", "step": 1, "metrics": {"a/b": 1.0}, "ledger": {}},
            ["step_trained.tokens"],
        ),
        (
            {"type": "run_finished", "outcome": "failed", "failure_class": "weather"},
            {"type": "run_finished", "outcome": "failed", "failure_class": None},
            ["run_finished.failure_class=weather"],
        ),
    ],
)
def test_what_a_later_release_adds_is_passed_over_by_name(
    body: dict[str, Any], kept: dict[str, Any] | None, passed_over: list[str]
) -> None:
    fact = read(body)
    assert list(fact.passed_over) == passed_over
    known = fact.body.model_dump()
    assert fact.body == UnknownFact(kind=body["type"]) if kept is None else kept.items() <= known.items()


def test_entry_with_an_unknown_required_value_is_left_out() -> None:
    spans = [SPAN, SPAN | {"doing": "dream"}]
    fact = read({"type": "replicas_observed", "replicas": [REPLICA | {"spans": spans, "mood": 1}]})
    assert fact.body.model_dump()["replicas"][0]["spans"] == [SPAN]
    assert fact.passed_over == (
        "replicas_observed.replicas.spans.doing=dream",
        "replicas_observed.replicas.mood",
    )


@pytest.mark.parametrize(
    ("needs", "body", "missing"),
    [
        (["moon_seen"], {"type": "moon_seen"}, ["moon_seen"]),
        (["moon_seen.cost"], {"type": "moon_seen", "cost": 3}, ["moon_seen"]),
        (["run_finished.refund"], {"type": "run_finished", "outcome": "paused", "refund": 3}, ["run_finished.refund"]),
        (["run_finished.refund"], {"type": "run_finished", "outcome": "paused", "mood": 3}, []),
        (
            ["run_finished.cause"],
            {"type": "run_finished", "outcome": "failed", "cause": "sun"},
            ["run_finished.cause=sun"],
        ),
    ],
)
def test_fact_states_which_names_it_needs(needs: list[str], body: dict[str, Any], missing: list[str]) -> None:
    assert read(body, needs=needs).missing == missing


def test_reduced_fact_is_one_that_the_other_release_reads_whole() -> None:
    """Every kind, with every field that this release has, for a release that lacks one name at a time."""
    body = {
        "type": "run_finished",
        "outcome": "failed",
        "failure_class": "memory",
        "message": "m",
        "ledger": {"a": 1},
        "cause": None,
    }
    values = {"run_finished.outcome=failed", "run_finished.failure_class=memory"}
    for name in sorted(name for name in FACT_NAMES if name.partition(".")[0] == "run_finished"):
        known = FACT_NAMES - {name}
        reduced, left = reduce_body(body, BODIES, known)
        again, left_again = reduce_body(reduced, BODIES, known | {"unknown", "unknown.kind"})
        assert (again, left_again) == (reduced, []) and (reduced == body) == (not left)
        assert bool(needed_of(DECISIVE, left)) == (name in DECISIVE or name == "run_finished" or name in values)


def test_digest_depends_on_the_names_only() -> None:
    assert digest_of(["b", "a"]) == digest_of({"a", "b"}) != digest_of(["a"])
