"""tiny"""

from electra_jax import config as config_lib


def get_config(arg: str = ""):
    config = config_lib.paper()
    config.steps = 1150
    config.batch_size = 48
    config.log_every, config.eval_every, config.eval_batches = 10, 300, 24
    config.data.update(vocab_size=2048, mode="packed", seq_length=64)
    config.model.update(
        encoder="modernbert",
        layers=2,
        width=128,
        ffn=192,
        heads=4,
        embedding_size=128,
        max_length=64,
        generator_width=0.5,
        init_stddev=0.05,
        dropout=0.0,
        dtype="float32",
        unroll=True,
    )
    config.model.modernbert.update(local_window=8, global_every=100)
    config.objective.discriminator_weight = 20.0
    config.optim.update(learning_rate=3e-3, warmup_steps=50, b2=0.98)
    config.checkpoint.update(every=200, keep_last=2, keep_every=10_000)
    return config_lib.finish(config, arg)
