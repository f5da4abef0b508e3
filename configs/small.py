"""ELECTRA-Small, as in the paper: 12 layers of width 256, generator a quarter as wide, 1M steps of 128 x 128.

    python -m electra_jax.train --config=configs/small.py --config.data.input='data/*.txt' --workdir=runs/small

The paper trained it in 4 days on one V100 to a GLUE dev average of 79.9 (arXiv 2003.10555, table 1). This repository
has not repeated that yet. `configs/small.py:runlocal` shrinks it to some seconds on a CPU.
"""

from electra_jax import train_config


def get_config(arg: str = ""):
    config = train_config.paper()
    config.steps = 1_000_000
    config.batch_size = 128
    config.data.seq_length = 128
    config.model.update(layers=12, width=256, ffn=1024, heads=4, embedding_size=128, generator_width=0.25)
    config.objective.mask_prob = 0.15
    config.optim.learning_rate = 5e-4
    return train_config.finish(config, arg)
