"""Host memory of a job: weights in transit, and a checkpoint until it is written."""

from typing import Final

from engine.fit.need import Need, Phase, Term
from engine.fit.plan import TrainerPlan
from engine.fit.shape import ModelShape
from engine.fit.trainer import MOMENT_BYTES, critic_weights, gradient_bytes, trained_weights, trainer_need

# A relay keeps the newest version, one that an evaluation has pinned, and one that is arriving.
VERSIONS_OF_A_RELAY: Final = 3
# What was handed over stays until relays have it; memory for the next is made ready meanwhile.
SEGMENTS_OF_A_TRAINER: Final = 2


def trainer_host_need(shape: ModelShape, plan: TrainerPlan) -> Need:
    return Need(
        of="Memory of the trainer's host, if it has one host",
        always=(
            Term(what="the published weights, and room for the next", num_bytes=segment_bytes(shape, plan.lora_rank)),
            Term(what="moments", num_bytes=offloaded_bytes(shape, plan)),
            Term(what="inputs of layers", num_bytes=offloaded_inputs_bytes(shape, plan)),
        ),
        phases=(
            Phase(
                what="while DeepSpeed flattens a model's weights",
                terms=(Term(what="the flattened weights", num_bytes=flattened_bytes(shape, plan)),),
            ),
            Phase(
                what="while a checkpoint is written",
                terms=(
                    Term(
                        what="the copy that is written",
                        num_bytes=checkpoint_bytes(shape, plan),
                        how="memory-mapped if memory is short",
                    ),
                    Term(what="8-bit moments as bfloat16", num_bytes=widened_bytes(shape, plan)),
                    Term(what="the largest matrix, gathered and cast", num_bytes=assembled_bytes(shape, plan)),
                ),
            ),
        ),
    )


def relay_host_need(shape: ModelShape, *, lora_rank: int = 0, num_relays: int = 1) -> Need:
    terms = relay_terms(version_bytes(shape, lora_rank), keeps_deltas=keeps_deltas(lora_rank, num_relays))
    return Need(of="Memory of each replica host", always=terms)


def keeps_deltas(lora_rank: int, num_relays: int) -> bool:
    """Relays that feed others send them the difference to the version before; of an adapter they send all."""
    return num_relays > 1 and not lora_rank


def relay_terms(version: int, *, keeps_deltas: bool) -> tuple[Term, Term]:
    """`version`: its bytes."""
    return (
        Term(
            what="the relay's versions",
            num_bytes=VERSIONS_OF_A_RELAY * version,
            how=f"{VERSIONS_OF_A_RELAY} versions",
        ),
        Term(
            what="deltas between them, for relays that are behind",
            num_bytes=version // 2 if keeps_deltas else 0,
            how="at most half a version",
        ),
    )


def version_bytes(shape: ModelShape, lora_rank: int) -> int:
    """P · bytes as stored; of an adapter 4·T."""
    return 4 * shape.adapter_weights(lora_rank) if lora_rank else shape.num_weights * shape.stored_bytes


def segment_bytes(shape: ModelShape, lora_rank: int) -> int:
    """Of 2 versions."""
    return SEGMENTS_OF_A_TRAINER * version_bytes(shape, lora_rank)


def offloaded_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """moments·T of all devices, taken to be of one host."""
    num_trained = trained_weights(shape, plan) + (critic_weights(shape) if plan.has_critic else 0)
    return int(MOMENT_BYTES[plan.moments] * num_trained) if plan.offloads_moments else 0


def offloaded_inputs_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """N·D of each token of a pass, on every device of the host."""
    if plan.activations != "offloaded":
        return 0
    of_one = plan.tokens * shape.num_layers * shape.width * plan.residual_bytes
    return plan.num_devices * plan.num_trained_models * of_one


def checkpoint_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """(4 + moments)·T, divided among the devices' processes; a critic's in addition."""
    num_trained = trained_weights(shape, plan) + (critic_weights(shape) if plan.has_critic else 0)
    moments = max(MOMENT_BYTES[plan.moments], MOMENT_BYTES["bfloat16"])  # 8 bits are stored as these
    return int((4 + moments) * num_trained)


def widened_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """4·T: those of 8 bits are made what is stored before they are copied."""
    num_trained = trained_weights(shape, plan) + (critic_weights(shape) if plan.has_critic else 0)
    return int(MOMENT_BYTES["bfloat16"] * num_trained) if plan.moments == "float8" else 0


def flattened_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """ZeRO 3 lays them out in the host's memory: 4·T, of all ranks. ZeRO 1 and 2 do it on the device if that has 4·T
    left, which it has if a step takes as much there later; else it is 8·T of each rank. One model after the other."""
    num_trained = max(trained_weights(shape, plan), critic_weights(shape) if plan.has_critic else 0)
    if plan.division == "zero3":
        return 4 * num_trained
    if plan.division not in ("zero1", "zero2") or later_bytes(shape, plan) >= 4 * num_trained:
        return 0
    return plan.num_devices * 8 * num_trained


def later_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """Of a device, that are not there yet when a trainer starts: gradients, and what a step works with."""
    fullest = trainer_need(shape, plan).fullest
    gradients = gradient_bytes(shape, trained_weights(shape, plan), plan)
    return gradients + (fullest.num_bytes if fullest is not None else 0)


def assembled_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """Published weights are made of this copy, one tensor at a time on each rank: its parts rounded, and together; a
    head of its own at the same time as the embedding. With an adapter, a base is merged, in float32 before."""
    largest, tables = max(shape.vocab_size * shape.width, shape.largest_matrix), 1 if shape.tied else 2
    return (6 + shape.stored_bytes if plan.lora_rank else 2 * tables * shape.stored_bytes) * largest
