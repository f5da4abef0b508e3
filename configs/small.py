"""ELECTRA-Small as in the paper: 12 layers of width 256, a generator of 1/4 the width, 1M steps of 128 x 128 tokens.

    electra-jax train --config=small --config.data.input='data/*.txt' --workdir=runs/small

The paper trained it for 4 days on one V100, to an average of 79.9 on the GLUE dev sets (arXiv 2003.10555, table 1).
This repository has not reproduced that yet. `--config=small:runlocal` shrinks the run to less than a minute on a CPU.
"""

from ml_collections import ConfigDict

from electra_jax import train_config


def get_config(arg: str = "") -> ConfigDict:
    config = train_config.paper()
    config.steps = 1_000_000
    config.batch_size = 128
    config.data.seq_length = 128
    config.model.update(layers=12, width=256, ffn=1024, heads=4, embedding_size=128, generator_width=0.25)
    config.objective.mask_prob = 0.15
    config.optim.learning_rate = 5e-4
    return train_config.finish(config, arg)
