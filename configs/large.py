"""ELECTRA-Large as in the paper: 24 layers of width 1024, generator of 1/4 the width, 400k steps of 2048 x 512 tokens.

    electra-jax train --config=large --config.data.input='data/*.txt' --workdir=runs/large

The paper's ELECTRA-400K reaches an average of 89.0 on the GLUE dev sets; its full model, `--config.steps=1750000`,
reaches 89.5 (arXiv 2003.10555, table 2). This repository has not reproduced either yet. `--config=large:runlocal`
shrinks the run to less than a minute on a CPU.
"""

from ml_collections import ConfigDict

from electra_jax import train_config


def get_config(arg: str = "") -> ConfigDict:
    config = train_config.paper()
    config.steps = 400_000
    config.batch_size = 2048
    config.data.seq_length = 512
    config.model.update(layers=24, width=1024, ffn=4096, heads=16, embedding_size=1024, generator_width=0.25)
    config.model.remat = "dots"  # less is written to memory than without, and on TPUs no matrix is multiplied again
    config.objective.mask_prob = 0.25
    config.optim.learning_rate = 2e-4
    return train_config.finish(config, arg)
