"""ELECTRA-Base as in the paper: 12 layers of width 768, a generator of 1/3 the width, 766k steps of 256 x 512 tokens.

    electra-jax train --config=base --config.data.input='data/*.txt' --workdir=runs/base

The paper trained it for 4 days on 16 TPU v3, to an average of 85.1 on the GLUE dev sets (arXiv 2003.10555, table 1 and
appendix A). This repository has not reproduced that yet. `--config=base:runlocal` shrinks the run to less than a minute
on a CPU.
"""

from ml_collections import ConfigDict

from electra_jax import train_config


def get_config(arg: str = "") -> ConfigDict:
    config = train_config.paper()
    config.steps = 766_000
    config.batch_size = 256
    config.data.seq_length = 512
    config.model.update(layers=12, width=768, ffn=3072, heads=12, embedding_size=768, generator_width=1 / 3)
    config.model.remat = "dots"  # less is written to memory than without, and on TPUs no matrix is multiplied again
    config.objective.mask_prob = 0.15
    config.optim.learning_rate = 2e-4
    return train_config.finish(config, arg)
