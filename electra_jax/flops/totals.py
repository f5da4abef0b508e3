"""FLOPs of a run, or of its first steps, in both accountings."""

from collections.abc import Callable, Sequence

from electra_jax.flops import hardware, paper
from electra_jax.flops.hardware import Parts, sum_networks
from electra_jax.objectives.segments import Segment
from electra_jax.objectives.spec import Objective, Stage

# (objective, stage, batch size in sequences, sequence length, optimizer) -> operations of a train step by network
ACCOUNTINGS: dict[str, Callable[[Objective, Stage, int, int, str], dict[str, Parts]]] = {
    "model": hardware.train_step,
    "paper": paper.train_step,
}


def count_flops(segments: Sequence[Segment], steps: int, optimizer: str = "adam") -> dict[str, float]:
    """Counts the FLOPs of the first `steps` steps of a run, by accounting.

    Args:
      segments: the run's schedule.
      steps: the number of steps to count.
      optimizer: `config.optim.name`.
    """

    def count(train_step: Callable[[Objective, Stage, int, int, str], dict[str, Parts]]) -> float:
        total = 0.0
        for segment in segments:
            # Negative for a segment that begins after `steps`.
            done = min(segment.stop, steps) - segment.start
            if done > 0:
                total += done * sum_networks(train_step(*segment.cost, optimizer))
        return total

    return {name: count(train_step) for name, train_step in ACCOUNTINGS.items()}
