"""BabyLM's tracks: 10 or 100 million words, read ten times, by an encoder that detects, fills and scores.

    electra-jax prepare --input='train_10M/*' --vocab_size=16384 --heldout_fraction=.005 --output=babylm
    electra-jax train --config=babylm:track=strict_small,corpus=babylm --workdir=runs/babylm

`track=` is `strict_small` (10M words; the default) or `strict` (100M). The steps follow from the prepared text in
`corpus=`, so that the run reads it ten times; without one they are an estimate, for `plan` and `flops`. Checkpoints are
kept where BabyLM's evaluation wants them: after each million words up to ten, each ten millions up to a hundred, and so
on.

The recipe is that of `configs/budget.py`, in a shape that takes 2e16 FLOPs for strict_small. It has not been trained on
BabyLM's text: no score is known. `--config=babylm:runlocal` shrinks the run to less than a minute on a CPU.
"""

import math
from pathlib import Path

from ml_collections import ConfigDict

from electra_jax import train_config
from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.data import corpus

_WORDS = {"strict_small": 10_000_000, "strict": 100_000_000}
_EPOCHS = 10  # the most that the rules allow
_TOKENS_PER_WORD = 1.4  # with [CLS] and [SEP]; 1.41 on ten million words of English Wikipedia
_LENGTH, _BATCH = 128, 128
_VOCABULARY = 16_384


def get_config(arg: str = "") -> ConfigDict:
    track, arg = config_file.take(arg, "track", "strict_small")
    text, rest = config_file.take(arg, "corpus", "")
    if track not in _WORDS:
        raise UserError(f"config argument track={track} is unknown: expected track={' or '.join(_WORDS)}")
    words = _WORDS[track]
    positions = words * _TOKENS_PER_WORD
    if text:
        if not corpus.is_prepared(Path(text)):
            raise UserError(f"config argument corpus={text} is no prepared corpus; make it with electra-jax prepare")
        shards = corpus.read_manifest(Path(text))["shards"]
        tokens, documents = (sum(shard[unit]["train"] for shard in shards) for unit in ("tokens", "documents"))
        positions = tokens + 2 * (documents + tokens / (_LENGTH - 2))  # [CLS] and [SEP] of each packed piece
    config = train_config.paper()
    # Rounded down: an eleventh pass over the text would begin otherwise.
    config.steps = max(1, math.floor(_EPOCHS * positions / (_LENGTH * _BATCH)))
    config.batch_size = _BATCH
    config.log_every, config.eval_every = max(1, config.steps // 250), max(1, config.steps // 20)
    config.checkpoint.update(every=max(1, config.steps // 20), keep_at=",".join(f"{at:g}" for at in _kept(words)))
    config.data.update(input=text, mode="packed", vocab_size=_VOCABULARY, seq_length=_LENGTH)
    config.model.update(encoder="modernbert", layers=12, width=384, ffn=576, heads=6, embedding_size=384)
    config.model.update(max_length=512, dropout=0.0, generator_width=0.5, generator_layers=2 / 3, init_stddev=0.03)
    config.objective.update(discriminator_weight=20.0, temperature=1.5)
    config.optim.update(name="muon", learning_rate=2e-3, muon_rate=2.0, b2=0.98)
    config.optim.update(schedule="stable", decay=0.4, warmup_steps=max(1, config.steps // 20))
    # First, so that another objective= in the argument replaces it: the last one counts.
    return train_config.finish(config, f"objective=electra_mlm,{rest}", "track=NAME, corpus=DIR")


def _kept(words: int) -> list[float]:
    """The fractions of the run after 1, 2, ... 10 million words, 20, 30, ... and so on."""
    whole, unit, shares = words * _EPOCHS / 1e6, 1, [1.0]
    while unit < whole:
        shares += [unit * number / whole for number in range(1, 10)]
        unit *= 10
    return sorted(shares)
