"""Train steps a second on a CPU or a GPU: this package, a naive JAX step, and PyTorch with transformers' modules.

    python benchmarks/step.py [--config=small] [--batch_size=16] [--length=128] [--dropouts 0 0.1] [--threads=2]
        [--rounds=7] [--steps=1] [--variants torch compiled naive scanned unrolled] [--clock=wall] [--json=FILE]
        [--dtype=float32] [--torch_parts=1]

    python benchmarks/step.py --config=base --batch_size=256 --length=512 --dropouts 0.1 --dtype=bfloat16
        --torch_parts=8 --variants unrolled torch compiled           # on one GPU

All variants train the same sizes on the same random tokens, in one process and in turns: A B C A B C ... A round is
`--steps` steps of each. Times are medians without the first round, which warms up; a ratio is the median of the rounds'
own ratios to the first variant, so that a machine that gets slower takes all along. Every step has a generator that
predicts the masked tokens, fakes sampled from it, a discriminator, tied embeddings, loss MLM + 50 x detection, clipping
and AdamW. PyTorch's generator predicts the masked positions only, as here.

--clock=cpu counts the processor time of all threads instead of the time that passes: on a machine that has other work
to do, with one thread, it is what the step would take alone.

The share is that of the machine's own matrix multiplication, measured in the same turns on the shapes of a
feed-forward layer, which a step would reach if its products (`electra_jax.flops`) were all of its time.
PyTorch needs '.[parity]', `compiled` also a C++ compiler; variants of BERT only are left out for other encoders, and
`naive` but for float32.

On a GPU, PyTorch has its own build for CUDA and computes the batch in --torch_parts, one after another, where it would
need too much memory at once. With --dtype=bfloat16 it uses autocast, with float32 TF32, as JAX does. JAX takes .6 of
the memory, unless XLA_CLIENT_MEM_FRACTION says otherwise. --threads and --clock=cpu are for CPUs.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import extras
import numpy as np

from electra_jax.config import cli, config_file, errors
from electra_jax.config.settings import above, check_value, one_of

Step = Callable[[], Any]
_OPTIONS: dict[str, Any] = {
    "config": "small",
    "batch_size": 16,
    "length": 128,
    "dropouts": ("0", "0.1"),
    "threads": 0,
    "rounds": 7,
    "steps": 1,
    "variants": ("torch", "compiled", "naive", "scanned", "unrolled"),
    "clock": "wall",
    "json": "",
    "dtype": "float32",
    "torch_parts": 1,
}
_CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
_VOCABULARY = 30522


def make_run(name: str, batch_size: int, length: int, dropout: float, dtype: str, unroll: str) -> Any:
    """The package's step of a config."""
    from electra_jax import train_config
    from electra_jax.objectives import registry
    from electra_jax.runtime import sharding
    from electra_jax.step import ShardedStep

    shipped, _, arg = name.partition(":")
    config = config_file.load(shipped, arg)
    config.batch_size, config.data.seq_length = batch_size, length
    config.model.update(dtype=dtype, dropout=dropout, unroll=unroll)
    typed = train_config.resolve(config)
    vocabulary = min(typed.data.vocab_size, _VOCABULARY)
    objective = registry.make(typed.objective, typed.model, typed.steps, vocabulary)
    return ShardedStep(typed, objective, sharding.make_mesh(typed.mesh, batch_size))


def ours(run: Any, ids: np.ndarray) -> Step:
    import jax

    from electra_jax.modeling.batch import Batch

    train_step, state = run.compile(run.segments[0]), run.fresh_state()
    batch = jax.device_put(Batch(ids, np.zeros_like(ids), np.ones_like(ids)))

    def step() -> None:
        nonlocal state
        state, measured = train_step(state, batch)
        jax.block_until_ready((state, measured))

    return step


def naive(run: Any, ids: np.ndarray) -> Step:
    """ELECTRA as one would write it first: jax.numpy, einsum, optax; no custom derivative, no scan."""
    import jax
    import jax.numpy as jnp
    import optax

    c = run.objective.model.config
    masked, rate = max(1, int(0.155 * ids.shape[1])), c.encoder.dropout

    def fresh(key: Any) -> Any:
        keys = iter(jax.random.split(key, 500))

        def matrix(*shape: int) -> Any:
            return {"w": 0.02 * jax.random.normal(next(keys), shape), "b": jnp.zeros(shape[1:])}

        def norm(size: int) -> Any:
            return {"scale": jnp.ones(size), "bias": jnp.zeros(size)}

        def encoder(n: Any) -> Any:
            layers = [
                {
                    "qkv": matrix(n.width, 3, n.heads, n.head_size),
                    "out": matrix(n.width, n.width),
                    "in": matrix(n.width, n.ffn),
                    "ffn": matrix(n.ffn, n.width),
                    "norms": [norm(n.width), norm(n.width)],
                }
                for _ in range(n.layers)
            ]
            project = {} if n.width == c.embedding_size else {"project": matrix(c.embedding_size, n.width)}
            return {**project, "layers": layers}

        e = c.embedding_size
        tables = {name: matrix(rows, e)["w"] for name, rows in (("word", c.padded_vocab_size), ("at", c.max_length))}
        return {
            **tables,
            "norm": norm(e),
            "generator": encoder(c.generator),
            "encoder": encoder(c.encoder),
            "mlm": {"dense": matrix(c.generator.width, e), "norm": norm(e), "bias": jnp.zeros(c.padded_vocab_size)},
            "head": {"dense": matrix(c.encoder.width, c.encoder.width), "out": matrix(c.encoder.width, 1)},
        }

    def normed(x: Any, p: Any) -> Any:
        return jax.nn.standardize(x, axis=-1, epsilon=1e-12) * p["scale"] + p["bias"]

    def affine(x: Any, p: Any) -> Any:
        return jnp.einsum("...d,df->...f", x, p["w"]) + p["b"]

    def drop(x: Any, key: Any) -> Any:
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0) if rate else x

    def encode(p: Any, which: str, ids: Any, key: Any) -> Any:
        x = drop(normed(p["word"][ids] + p["at"][: ids.shape[1]], p["norm"]), key)
        x = affine(x, p[which]["project"]) if "project" in p[which] else x
        for number, layer in enumerate(p[which]["layers"]):
            keys = jax.random.split(jax.random.fold_in(key, number), 3)
            q, k, v = jnp.moveaxis(jnp.einsum("bld,dihk->blihk", x, layer["qkv"]["w"]) + layer["qkv"]["b"], 2, 0)
            weights = jax.nn.softmax(jnp.einsum("bqhk,bshk->bhqs", q, k) / q.shape[-1] ** 0.5)
            attended = jnp.einsum("bhqs,bshk->bqhk", drop(weights, keys[0]), v).reshape(x.shape)
            x = normed(x + drop(affine(attended, layer["out"]), keys[1]), layer["norms"][0])
            h = affine(jax.nn.gelu(affine(x, layer["in"]), approximate=False), layer["ffn"])
            x = normed(x + drop(h, keys[2]), layer["norms"][1])
        return x

    def loss(p: Any, ids: Any, key: Any) -> Any:
        where, fakes_key, g, d = jax.random.split(key, 4)
        rows = jnp.arange(len(ids))[:, None]
        at = jax.lax.top_k(jax.random.uniform(where, ids.shape), masked)[1]
        x = encode(p, "generator", ids.at[rows, at].set(4), g)[rows, at]
        x = normed(jax.nn.gelu(affine(x, p["mlm"]["dense"]), approximate=False), p["mlm"]["norm"])
        logits = x @ p["word"].T + p["mlm"]["bias"]
        fakes = jax.random.categorical(fakes_key, jax.lax.stop_gradient(logits))
        corrupted = ids.at[rows, at].set(fakes)
        h = jax.nn.gelu(affine(encode(p, "encoder", corrupted, d), p["head"]["dense"]), approximate=False)
        scores = affine(h, p["head"]["out"])[..., 0]
        mlm = optax.softmax_cross_entropy_with_integer_labels(logits, ids[rows, at]).mean()
        return mlm + 50 * optax.sigmoid_binary_cross_entropy(scores, corrupted != ids).mean()

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(5e-4, weight_decay=0.01))

    @jax.jit
    def train_step(params: Any, moments: Any, ids: Any, key: Any) -> Any:
        updates, moments = optimizer.update(jax.grad(loss)(params, ids, key), moments, params)
        return optax.apply_updates(params, updates), moments

    params = fresh(jax.random.key(0))
    moments, key = optimizer.init(params), jax.random.key(1)
    given = jax.device_put(ids)

    def step() -> None:
        nonlocal params, moments, key
        key = jax.random.fold_in(key, 0)
        params, moments = jax.block_until_ready(train_step(params, moments, given, key))

    return step


def by_torch(run: Any, ids: np.ndarray, compiled: bool, parts: int) -> Step:
    """transformers' ELECTRA with SDPA and PyTorch's fused AdamW, on the device that JAX uses."""
    import jax

    with extras.needed("pip install '.[parity]', or name other --variants"):
        import torch
        import transformers

    c = run.objective.model.config
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
    autocast = torch.autocast(device, torch.bfloat16, enabled=run.config.model.dtype == "bfloat16")

    config: Any = transformers.ElectraConfig  # takes more than its signature says

    def network(kind: Any, n: Any) -> Any:
        return kind(
            config(
                vocab_size=c.padded_vocab_size,
                embedding_size=c.embedding_size,
                hidden_size=n.width,
                num_hidden_layers=n.layers,
                num_attention_heads=n.heads,
                intermediate_size=n.ffn,
                max_position_embeddings=c.max_length,
                hidden_dropout_prob=n.dropout,
                attention_probs_dropout_prob=n.dropout,
                attn_implementation="sdpa",
            )
        )

    generator = network(transformers.ElectraForMaskedLM, c.generator)
    encoder = network(transformers.ElectraForPreTraining, c.encoder)
    generator.to(device).train(), encoder.to(device).train()
    generator.electra.embeddings = encoder.electra.embeddings
    generator.generator_lm_head.weight = encoder.electra.embeddings.word_embeddings.weight
    params = list({id(p): p for p in [*generator.parameters(), *encoder.parameters()]}.values())
    optimizer = torch.optim.AdamW(params, lr=5e-4, weight_decay=0.01, fused=True)
    given = torch.from_numpy(ids).long().to(device)
    masked = max(1, int(0.155 * ids.shape[1]))

    def loss(given: Any) -> Any:
        at = torch.rand(given.shape, device=device).topk(masked, dim=1).indices
        states = generator.electra(given.scatter(1, at, 4)).last_hidden_state
        states = states.gather(1, at[..., None].expand(-1, -1, states.shape[-1]))
        logits = generator.generator_lm_head(generator.generator_predictions(states)).flatten(0, 1)
        fakes = torch.multinomial(logits.detach().float().softmax(-1), 1).view_as(at)
        corrupted = given.scatter(1, at, fakes)
        scores = encoder(corrupted).logits
        mlm = torch.nn.functional.cross_entropy(logits.float(), given.gather(1, at).flatten())
        labels = (corrupted != given).float()
        return mlm + 50 * torch.nn.functional.binary_cross_entropy_with_logits(scores.float(), labels)

    forward = torch.compile(loss) if compiled else loss

    def step() -> None:
        for part in given.chunk(parts):
            with autocast:
                computed = forward(part)
            (computed / parts).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def multiply(run: Any, tokens: int) -> tuple[Step, float]:
    """The products of the encoder's feed-forward layer and of its gradients, ten times, and their operations."""
    import jax

    n = run.objective.model.config.encoder
    # A GPU multiplies random numbers more slowly than ones, because they take more power.
    x, w, y = (
        jax.random.normal(jax.random.key(0), shape, run.config.model.dtype)
        for shape in ((tokens, n.width), (n.width, n.ffn), (tokens, n.ffn))
    )
    products = jax.jit(lambda x, w, y: (x @ w, y @ w.T, x.T @ y))

    def step() -> None:
        for _ in range(10):
            jax.block_until_ready(products(x, w, y))

    return step, 10 * 3 * 2 * tokens * n.width * n.ffn


def make_steps(chosen: dict[str, Any], dropout: float, ids: np.ndarray) -> tuple[dict[str, Step], float, float]:
    """The steps by their names, the operations of one, and those of `GEMM`."""
    from electra_jax.flops import hardware
    from electra_jax.flops.hardware import sum_networks

    def run_of(unroll: str) -> Any:
        batch_size, length = ids.shape
        return make_run(chosen["config"], batch_size, length, dropout, chosen["dtype"], unroll)

    run = run_of("false")
    gemm, gemm_operations = multiply(run, ids.size)
    makers: dict[str, Callable[[], Step]] = {
        "scanned": lambda: ours(run, ids),
        "unrolled": lambda: ours(run_of("true"), ids),
    }
    if run.config.model.encoder == "bert":
        makers["torch"] = lambda: by_torch(run, ids, False, chosen["torch_parts"])
        makers["compiled"] = lambda: by_torch(run, ids, True, chosen["torch_parts"])
        if chosen["dtype"] == "float32":
            makers["naive"] = lambda: naive(run, ids)
    steps = {name: makers[name]() for name in chosen["variants"] if name in makers}
    if not steps:
        given = f"--config={chosen['config']} and --dtype={chosen['dtype']}"
        raise errors.UserError(f"no variant can run with {given}: expected scanned or unrolled in --variants")
    operations = sum_networks(hardware.train_step(run.objective, run.objective.stages[0], *ids.shape))
    return {"GEMM": gemm, **steps}, operations, gemm_operations


def measure(chosen: dict[str, Any], dropout: float, ids: np.ndarray) -> list[dict[str, Any]]:
    """A row for each variant."""
    steps, operations, gemm_operations = make_steps(chosen, dropout, ids)
    times: dict[str, list[float]] = {name: [] for name in steps}
    clock = _CLOCKS[chosen["clock"]]
    for _ in range(chosen["rounds"] + 1):
        for name, step in steps.items():
            count = 1 if name == "GEMM" else chosen["steps"]
            begin = clock()
            for _ in range(count):
                step()
            times[name].append((clock() - begin) / count)
    times = {name: values[1:] for name, values in times.items()}
    rate = gemm_operations / statistics.median(times.pop("GEMM"))
    first = next(iter(times))
    rows = []
    for name, values in times.items():
        seconds = statistics.median(values)
        rows.append(
            {
                "variant": name,
                "dropout": dropout,
                "ms": round(1e3 * seconds, 1),
                "tokens_per_second": round(ids.size / seconds),
                f"of_{first}": round(statistics.median(a / b for a, b in zip(times[first], values, strict=True)), 3),
                "gemm_gflops": round(rate / 1e9, 1),
                "share_of_gemm": round(operations / seconds / rate, 3),
                "rounds_ms": [round(1e3 * value, 1) for value in values],
            }
        )
    return rows


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    for name in ("batch_size", "length", "rounds", "steps", "torch_parts"):
        check_value(f"--{name}", chosen[name], above(0))
    for name in chosen["variants"]:
        check_value("--variants", name, one_of(*_OPTIONS["variants"]))
    check_value("--clock", chosen["clock"], one_of(*_CLOCKS))
    check_value("--dtype", chosen["dtype"], one_of("float32", "bfloat16"))
    os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", ".6")  # leaves memory to PyTorch
    cores = sorted(os.sched_getaffinity(0))
    if chosen["threads"]:  # before JAX and PyTorch are imported, which start as many threads as there are cores
        cores = cores[: chosen["threads"]]
        os.sched_setaffinity(0, cores)
    if chosen["json"]:
        Path(chosen["json"]).parent.mkdir(parents=True, exist_ok=True)  # now, not when all is measured
    ids = np.random.default_rng(0).integers(5, 2000, (chosen["batch_size"], chosen["length"])).astype(np.int32)
    measured = []
    for text in chosen["dropouts"]:
        rows = measure(chosen, cli.convert("--dropouts", text, 0.0), ids)
        measured += rows
        names = [name for name in rows[0] if name != "rounds_ms"]
        print(f"{chosen['config']}, {ids.shape[0]} x {ids.shape[1]}, {len(cores)} threads")
        print("| " + " | ".join(names) + " |\n|" + " --- |" * len(names))
        for row in rows:
            print("| " + " | ".join(str(row[name]) for name in names) + " |", flush=True)
    if chosen["json"]:
        settings = {**chosen, "threads": len(cores)}
        Path(chosen["json"]).write_text(json.dumps({"settings": settings, "rows": measured}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
