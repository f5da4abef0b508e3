"""Fine-tuning speed in examples per second, next to a plain PyTorch loop over ElectraForSequenceClassification.

    python benchmarks/finetuning.py --data_dir=glue/CoLA [--examples=640] [--rounds=3] [--layers=12] [--width=256]

Both train the same encoder with random weights on the same sentences in batches of 32, on the CPU, with fused AdamW in
PyTorch. PyTorch pads a row to the longest of its batch; electra_jax puts rows of similar lengths into a batch and pads
them to its bucket. Rounds alternate; rates are medians without the first round, in which electra_jax compiles. It needs
'.[downstream,parity]'.
"""

import dataclasses
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import extras
import jax
import numpy as np

from electra_jax.config import cli, errors
from electra_jax.config.settings import above, check_value
from electra_jax.data import tokenizer, vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.downstream.finetuning import job, multi_seed, recipe
from electra_jax.downstream.tasks import registry
from electra_jax.downstream.tasks.task import BadRows, Rows
from electra_jax.loading.huggingface import directory

with extras.needed("pip install '.[downstream,parity]'"):
    import torch
    import transformers

_VOCABULARY = 2000


def by_torch(model: Any, rows: Rows, batch_size: int) -> float:
    """Seconds that an epoch takes in PyTorch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    order = np.random.default_rng(0).permutation(len(rows.input_ids))
    begin = time.perf_counter()
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        longest = max(len(rows.input_ids[i]) for i in chosen)
        part = rows.make_batch(chosen, len(chosen), longest, tokenizer.OWN)
        ids, types, sequences = (torch.from_numpy(values).long() for values in part.inputs)
        outputs = model(input_ids=ids, attention_mask=sequences, token_type_ids=types)
        loss = torch.nn.functional.cross_entropy(outputs.logits, torch.from_numpy(part.targets["target"]).long())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - begin


def main(argv: list[str]) -> int:
    options = {"data_dir": "", "examples": 640, "rounds": 3, "layers": 12, "width": 256}
    chosen = cli.parse(argv, __doc__ or "", options)
    cli.require(chosen, ("data_dir",))
    for name in ("examples", "rounds", "layers", "width"):
        check_value(f"--{name}", chosen[name], above(0))
    jax.config.update("jax_platforms", "cpu")  # where PyTorch is
    config = dataclasses.replace(recipe.resolve(recipe.make("cola")), epochs=1, examples=chosen["examples"])
    task = registry.make_task(config.task, chosen["data_dir"])
    lines = [example.texts[0] for example in task.read(chosen["data_dir"], "train", BadRows())]
    words = vocabulary_training.train(lines, CorpusConfig(vocab_size=_VOCABULARY))
    data = job.load_data(config, task, words, chosen["data_dir"], BadRows())
    shape = transformers.ElectraConfig(
        vocab_size=_VOCABULARY,
        embedding_size=chosen["width"] // 2,
        hidden_size=chosen["width"],
        num_hidden_layers=chosen["layers"],
        num_attention_heads=max(1, chosen["width"] // 64),
        intermediate_size=4 * chosen["width"],
    )
    theirs = transformers.ElectraForSequenceClassification(shape).train()
    with tempfile.TemporaryDirectory() as place:
        theirs.electra.save_pretrained(place)
        network = directory.read(Path(place)).encoder
    model = job.make_model(config, task, network)
    times: dict[str, list[float]] = {"1 seed": [], "5 seeds at once": [], "torch": []}
    for _ in range(chosen["rounds"] + 1):
        for name, count in (("1 seed", 1), ("5 seeds at once", 5)):
            begin = time.perf_counter()
            multi_seed.train(model, network, config, data.train, words.special, range(count))
            times[name].append((time.perf_counter() - begin) / count)
        times["torch"].append(by_torch(theirs, data.train, config.batch_size))
    rates = {name: len(data.train.input_ids) / statistics.median(seconds[1:]) for name, seconds in times.items()}
    print(json.dumps({"seconds of an epoch and seed": times}))
    print(json.dumps({"examples a second": rates}))
    print(json.dumps({"of torch's": {name: rate / rates["torch"] for name, rate in rates.items()}}))
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
