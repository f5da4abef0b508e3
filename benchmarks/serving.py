"""How fast the tools of docs/howto/serve.md compute sentence vectors on a CPU, and whether they are those of `encode`.

    electra-jax export --workdir=runs/mine --output=exported --as=bert --sentence_transformers --onnx
    python benchmarks/serving.py --tool=NAME --folder=exported --texts=FILE [--count=300] [--rounds=5]

Begin with --tool=electra_jax, which writes its vectors to exported/vectors.npz. The other tools are
sentence-transformers, onnxruntime, fastembed, transformers.js, CTranslate2, curated-transformers and llama.cpp. Each
reads exported/encoder, or what the page's lines make of it: exported/converted for CTranslate2, exported/encoder.gguf
for llama.cpp, and exported/models/encoder beside exported/node_modules for transformers.js. --form chooses another file
or precision: fp16 or int8 for onnxruntime, fp16 or q8 for transformers.js, int8 for CTranslate2, q8_0 for llama.cpp,
which then reads exported/encoder-q8_0.gguf.

The texts are the first --count lines of FILE that are not blank; none may be longer than the encoder reads. The first
ten are encoded alone and all of them together, in batches of 32 (electra_jax: 16), twice to warm up and then --rounds
times. A line of JSON has the medians, milliseconds for a text alone and texts a second together; the megabytes of
weights; and the largest difference from the vectors of electra_jax.

Needs an environment with electra_jax and the tool.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import extras
import numpy as np

from electra_jax.config import cli, errors
from electra_jax.config.errors import UserError
from electra_jax.config.settings import at_least, check_value, one_of

ALONE = 10  # texts
_BATCH = 32
_WHOLE = "float32"


class Tool(NamedTuple):
    """Computes the vectors of texts [N] -> [N, D], from a file."""

    encode: Callable[[list[str]], Any]
    weights: Path


def by_electra_jax(folder: Path, form: str) -> Tool:
    import jax

    import electra_jax

    jax.config.update("jax_platforms", "cpu")  # as the other tools
    return Tool(electra_jax.load(folder / "encoder").encode, folder / "encoder" / "model.safetensors")


def by_sentence_transformers(folder: Path, form: str) -> Tool:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder / "encoder"), device="cpu")
    return Tool(lambda texts: model.encode(texts, batch_size=_BATCH), folder / "encoder" / "model.safetensors")


def by_onnxruntime(folder: Path, form: str) -> Tool:
    import onnxruntime
    from transformers import AutoTokenizer

    weights = onnx_file(folder / "encoder", form)
    session = onnxruntime.InferenceSession(weights)
    tokenizer = AutoTokenizer.from_pretrained(folder / "encoder")
    names = [each.name for each in session.get_inputs()]

    def encode(texts: list[str]) -> Any:
        inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="np")
        (states,) = session.run(None, {name: inputs[name] for name in names})
        return masked_mean(states, inputs["attention_mask"])

    return Tool(in_batches(encode), weights)


def by_fastembed(folder: Path, form: str) -> Tool:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    source = ModelSource(hf="mine/encoder")
    settings = {"pooling": PoolingType.MEAN, "normalization": False, "sources": source, "dim": width(folder)}
    TextEmbedding.add_custom_model(model="mine/encoder", model_file="onnx/model.onnx", **settings)
    model = TextEmbedding("mine/encoder", specific_model_path=str(folder / "encoder"))
    return Tool(lambda texts: list(model.embed(texts, batch_size=_BATCH)), onnx_file(folder / "encoder", form))


_NODE = """
import { env, pipeline } from "@huggingface/transformers";
import { createInterface } from "node:readline";
env.localModelPath = "./models/";
env.allowRemoteModels = false;
const embed = await pipeline("feature-extraction", "encoder", { dtype: "DTYPE" });
for await (const line of createInterface({ input: process.stdin }))
  console.log(JSON.stringify((await embed(JSON.parse(line), { pooling: "mean" })).tolist()));
"""


def by_transformers_js(folder: Path, form: str) -> Tool:
    weights = onnx_file(existing(folder / "models" / "encoder"), form)
    existing(folder / "node_modules")
    program = _NODE.replace("DTYPE", "fp32" if form == _WHOLE else form)
    command = ["node", "--input-type=module", "-e", program]
    node: Any = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def encode(texts: list[str]) -> Any:
        node.stdin.write(json.dumps(texts) + "\n")
        node.stdin.flush()
        answer = node.stdout.readline()
        if not answer:
            raise UserError("node has ended; see its message above")
        return np.array(json.loads(answer))

    return Tool(in_batches(encode), weights)


def by_ctranslate2(folder: Path, form: str) -> Tool:
    import ctranslate2
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "encoder")
    encoder = ctranslate2.Encoder(str(existing(folder / "converted")), compute_type=form, intra_threads=0)

    def encode(texts: list[str]) -> Any:
        ids = tokenizer(texts, truncation=True)["input_ids"]
        states = np.array(encoder.forward_batch(ids).last_hidden_state)
        used = np.array([[1] * len(row) + [0] * (states.shape[1] - len(row)) for row in ids])
        return masked_mean(states, used)

    return Tool(in_batches(encode), folder / "converted" / "model.bin")


def by_curated_transformers(folder: Path, form: str) -> Tool:
    import torch
    from curated_transformers.models import BERTEncoder
    from curated_transformers.tokenizers import AutoTokenizer
    from fsspec.implementations.local import LocalFileSystem

    place: Any = {"fs": LocalFileSystem(), "model_path": str(folder / "encoder")}
    encoder, tokenizer = BERTEncoder.from_fsspec(**place).eval(), AutoTokenizer.from_fsspec(**place)

    def encode(texts: list[str]) -> Any:
        pieces = tokenizer(texts)
        mask = pieces.attention_mask()
        with torch.inference_mode():
            states = encoder(pieces.padded_tensor(), mask).last_hidden_layer_state
        return masked_mean(states.numpy(), mask.bool_mask.reshape(len(texts), -1).numpy())

    return Tool(in_batches(encode), folder / "encoder" / "model.safetensors")


def by_llama_cpp(folder: Path, form: str) -> Tool:
    from llama_cpp import LLAMA_POOLING_TYPE_MEAN, Llama

    file = existing(folder / ("encoder.gguf" if form == _WHOLE else f"encoder-{form}.gguf"))
    sizes = {"n_ctx": 512, "n_batch": 512, "n_ubatch": 512, "n_threads": os.cpu_count()}
    model = Llama(str(file), embedding=True, pooling_type=LLAMA_POOLING_TYPE_MEAN, verbose=False, **sizes)
    return Tool(in_batches(lambda texts: model.embed(texts, normalize=False)), file)


_TOOLS: dict[str, tuple[Callable[[Path, str], Tool], tuple[str, ...]]] = {  # and their values of --form besides float32
    "electra_jax": (by_electra_jax, ()),
    "sentence-transformers": (by_sentence_transformers, ()),
    "onnxruntime": (by_onnxruntime, ("fp16", "int8")),
    "fastembed": (by_fastembed, ()),
    "transformers.js": (by_transformers_js, ("fp16", "q8")),
    "CTranslate2": (by_ctranslate2, ("int8",)),
    "curated-transformers": (by_curated_transformers, ()),
    "llama.cpp": (by_llama_cpp, ("q8_0",)),
}


def existing(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"{path} is missing: docs/howto/serve.md says what makes it")
    return path


def onnx_file(encoder: Path, form: str) -> Path:
    name = {_WHOLE: "model", "fp16": "model_fp16"}.get(form, "model_quantized")
    return existing(encoder / "onnx" / f"{name}.onnx")


def masked_mean(states_BLD: Any, used_BL: Any) -> Any:
    used = np.asarray(used_BL, np.float32)[..., None]
    return (states_BLD * used).sum(1) / used.sum(1)


def in_batches(encode: Callable[[list[str]], Any]) -> Callable[[list[str]], Any]:
    """Texts of about one length in a batch, as sentence-transformers does it."""

    def encode_all(texts: list[str]) -> Any:
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        parts = [order[first : first + _BATCH] for first in range(0, len(order), _BATCH)]
        parts = [encode([texts[number] for number in part]) for part in parts]
        vectors = np.concatenate([np.asarray(part, np.float32) for part in parts])
        return vectors[np.argsort(order)]

    return encode_all


def width(folder: Path) -> int:
    return int(json.loads((folder / "encoder" / "config.json").read_text())["hidden_size"])


def seconds_of(encode: Callable[[list[str]], Any], texts: list[str]) -> tuple[float, float]:
    """(seconds of a text alone, seconds of all texts in one call)."""
    begin = time.perf_counter()
    for text in texts[:ALONE]:
        encode([text])
    between = time.perf_counter()
    encode(texts)
    return (between - begin) / ALONE, time.perf_counter() - between


def read_texts(path: str, count: int) -> list[str]:
    """The first lines of a file that are not blank.

    Raises:
      UserError: they are fewer than `ALONE`.
    """
    check_value("--count", count, at_least(ALONE))
    with open(path, encoding="utf-8") as file:
        texts = list(itertools.islice(filter(None, map(str.strip, file)), count))
    if len(texts) < ALONE:
        raise UserError(f"--texts={path} has {len(texts)} lines: expected {ALONE} or more")
    return texts


def measure(tool: Tool, texts: list[str], rounds: int) -> tuple[dict[str, float], Any]:
    """(times, vectors)."""

    vectors = np.array(tool.encode(texts))
    seconds_of(tool.encode, texts)
    alone, together = zip(*(seconds_of(tool.encode, texts) for _ in range(rounds)), strict=True)
    return {
        "one_text_ms": round(1e3 * statistics.median(alone), 2),
        "texts_per_second": round(len(texts) / statistics.median(together), 1),
        "megabytes": round(tool.weights.stat().st_size / 1e6, 1),
    }, vectors


def main(argv: list[str]) -> int:
    options = {"tool": "", "folder": "", "texts": "", "form": _WHOLE, "count": 300, "rounds": 5}
    chosen = cli.parse(argv, __doc__ or "", options)
    cli.require(chosen, ("tool", "folder", "texts"))
    check_value("--tool", chosen["tool"], one_of(*_TOOLS))
    make, forms = _TOOLS[chosen["tool"]]
    check_value("--form", chosen["form"], one_of(_WHOLE, *forms))
    check_value("--rounds", chosen["rounds"], at_least(1))
    texts = read_texts(chosen["texts"], chosen["count"])
    folder = Path(chosen["folder"])
    existing(folder / "encoder")
    reference = folder / "vectors.npz"
    known = np.load(reference)["texts"].tolist() if reference.exists() else []
    if chosen["tool"] != "electra_jax" and known != texts:
        raise UserError(f"{reference} does not have the vectors of these texts: run --tool=electra_jax first")
    with extras.needed("docs/howto/serve.md says what each tool needs"):
        tool = make(folder, chosen["form"])
    found, vectors = measure(tool, texts, chosen["rounds"])
    if chosen["tool"] == "electra_jax":
        np.savez(reference, texts=np.array(texts), vectors=vectors)
    difference = float(np.abs(vectors - np.load(reference)["vectors"]).max())
    print(json.dumps({"tool": chosen["tool"], "form": chosen["form"], **found, "largest_difference": difference}))
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
