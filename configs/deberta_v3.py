"""DeBERTaV3: two DeBERTas trained by replaced-token detection, with gradient-disentangled embedding sharing.

    electra-jax train --config=deberta_v3:size=xsmall --config.data.input='data/*.txt' --workdir=runs/v3

`size=` is xsmall, small, base (the default) or large. Shapes, losses and the optimizer's settings are those of the
authors' code (microsoft/DeBERTa); comments name the files, in its folders DeBERTa/ and experiments/language_model/.
Their steps are those of its examples: what the released models were trained with is in arXiv 2111.09543. This
repository has not trained any of them yet. `--config=deberta_v3:size=xsmall,runlocal` shrinks the run to less than a
minute on a CPU.
"""

from ml_collections import ConfigDict

from electra_jax import train_config

# Layers, width and heads from rtd_*.json; peak learning rate and batch from rtd.sh, which has none for small: base's.
_SIZES = {
    "xsmall": (12, 384, 6, 3e-4, 64),
    "small": (6, 768, 12, 1e-4, 256),
    "base": (12, 768, 12, 1e-4, 256),
    "large": (24, 1024, 16, 1e-4, 256),
}


def get_config(arg: str = "") -> ConfigDict:
    size, rest = train_config.choose_size(arg, _SIZES, "base")
    layers, width, heads, learning_rate, batch_size = _SIZES[size]
    config = train_config.paper()
    config.steps, config.batch_size = 1_000_000, batch_size  # rtd.sh
    # rtd.sh and prepare_data.py: all documents as one text, in lines of 512 with [CLS] and [SEP]; the vocabulary keeps
    # case, and has 128,000 pieces.
    config.data.update(mode="packed", seq_length=512, vocab_size=128_000, normalization="nmt_nfkc")
    # rtd_*.json: a generator of the same width with half of the layers; 256 buckets of relative positions up to 512.
    config.model.update(encoder="deberta", layers=layers, width=width, ffn=4 * width, heads=heads)
    config.model.update(embedding_size=width, generator_width=1.0, generator_layers=0.5, tying="gdes")
    config.model.remat = "dots"  # less is written to memory than without, and on TPUs no matrix is multiplied again
    # apps/tasks/rtd_task.py and mlm_task.py: 15% of the tokens are masked, each by [MASK]; rtd_lambda. Fakes are
    # sampled at temperature 1, as by default.
    config.objective.update(mask_prob=0.15, replace_prob=1.0, discriminator_weight=10.0)
    config.optim.learning_rate = learning_rate  # the rest of optims/args.py is as in ELECTRA
    return train_config.finish(config, rest)
