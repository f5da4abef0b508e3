import types

import pytest
from cli_runs import make_objective, small_config

from electra_jax import metrics, train_config
from electra_jax.flops import hardware
from electra_jax.flops.hardware import sum_networks
from electra_jax.metric_log import MetricLog
from electra_jax.runtime import goodput, sharding
from electra_jax.runtime.progress import Progress
from electra_jax.step import ShardedStep


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_flops_are_those_of_the_objective_and_of_the_optimizer(optimizer, tmp_path):
    config = train_config.resolve(small_config(optim__name=optimizer))
    objective = make_objective(config, 100)
    mesh = sharding.make_mesh(config.mesh, config.batch_size)
    totals = dict.fromkeys(metrics.TOTALS, 0.0)
    home = types.SimpleNamespace(folder=tmp_path, path=tmp_path)
    log = MetricLog(
        ShardedStep(config, objective, mesh), home, 0, totals, lambda step: 0.0, Progress(), goodput.Clock()
    )
    parts = hardware.train_step(objective, objective.stages[0], config.batch_size, config.data.seq_length, optimizer)
    assert ("optimizer" in parts) == (optimizer == "muon")
    log.close()
    assert log.flops(3)["model"] == pytest.approx(3 * sum_networks(parts))
