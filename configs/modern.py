"""ELECTRA with ModernBERT encoders and Muon.

    electra-jax train --config=modern:size=base --config.data.input='data/*.txt' --workdir=runs/modern

`size=` is tiny, small (the default), base or large. By word order, with 1e13 FLOPs, three seeds and each optimizer at
the best learning rate tried, Muon was 4.4 ± 3.5 points ahead of Adam; no other change to the recipe was shown to pay.
By scores after fine-tuning, of one run of pre-training each, it was ahead with 1e13 and 3e13 FLOPs, and with 1e14 no
difference was shown (docs/reference/ladder.md). The rest is as in `configs/tiny.py`, but global attention is that of
ModernBERT. No size has been trained as it stands here:
- base and large have the shapes of ModernBERT's, and small has as many parameters in its layers as ELECTRA-Small.
- Learning rates fall as the inverse of the width from the one that the ladder chose at a width of 128 with 3e13 FLOPs,
  and initial weights as the inverse of its root from those of `configs/tiny.py`.
- Batches and lengths are those of the paper's sizes, and steps cost as many FLOPs (`model` count) in all.

`--config=modern:size=base,runlocal` shrinks the run to less than a minute on a CPU.
"""

from ml_collections import ConfigDict

from electra_jax import train_config

# Layers, width, FFN, heads; pieces of the vocabulary; steps, batch and length.
_SIZES = {
    "tiny": (3, 128, 192, 4, 2048, 1060, 48, 64),
    "small": (17, 256, 384, 4, 30_522, 800_000, 128, 128),
    "base": (22, 768, 1152, 12, 30_522, 532_000, 256, 512),
    "large": (28, 1024, 2624, 16, 30_522, 322_000, 2048, 512),
}


def get_config(arg: str = "") -> ConfigDict:
    size, rest = train_config.choose_size(arg, _SIZES, "small")
    layers, width, ffn, heads, vocab_size, steps, batch_size, length = _SIZES[size]
    config = train_config.paper()
    config.steps, config.batch_size = steps, batch_size
    config.data.update(mode="packed", vocab_size=vocab_size, seq_length=length)
    config.model.update(encoder="modernbert", layers=layers, width=width, ffn=ffn, heads=heads)
    config.model.update(generator_width=0.5, generator_layers=2 / 3)
    config.model.embedding_size = width  # transformers' ModernBERT has no projection after its embeddings
    config.model.update(init_stddev=round(0.05 * (128 / width) ** 0.5, 4), dropout=0.0)
    if size == "tiny":
        config.log_every, config.eval_every, config.eval_batches = 10, 265, 24
        config.checkpoint.update(every=200, keep_last=2, keep_every=10_000)
        config.model.update(max_length=length, dtype="float32")
        config.model.modernbert.local_window = 8  # as in tiny.py
    else:
        config.model.remat = "dots"  # as in base.py
    config.objective.update(discriminator_weight=20.0, temperature=1.5)
    config.optim.update(name="muon", learning_rate=3e-3 * 128 / width, muon_rate=2.0, b2=0.98)
    config.optim.warmup_steps = min(10_000, steps // 20)
    return train_config.finish(config, rest)
