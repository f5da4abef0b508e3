"""Adds an ONNX file to a Hugging Face directory, by PyTorch's exporter from the class of transformers.

This is the only module that needs PyTorch. The exporters that would do without a step of our own cannot be installed
beside this package: optimum-onnx 0.1 needs transformers 4, and jax2onnx 0.17 an orbax-checkpoint below 0.11.37.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

from electra_jax.config.errors import UserError
from electra_jax.loading.huggingface.directory import CONFIG, WEIGHTS
from electra_jax.runtime.io import read_json

FILE = Path("onnx", "model.onnx")  # where transformers.js looks; optimum looks there too
OPSET = 18
_AXES = ("batch", "sequence")
# Protocol buffers end at 2 GiB; beyond, weights go to a second file, model.onnx.data.
_MOST_BYTES = 2**31 - 2**24


def check_installed() -> None:
    """Raises UserError where a package that `write` needs is missing."""
    try:
        import onnxscript  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError(f"ONNX files need {error.name}; pip install 'electra_jax[onnx]'") from error


def write(folder: Path) -> None:
    """Writes `FILE` into a directory that `directory.write` has written.

    Inputs are those of the directory's tokenizer, int64 [batch, sequence], of any batch and length; outputs are those
    of the class of transformers, by its names: `logits`, `start_logits` and `end_logits`, or `last_hidden_state`.

    Raises:
      UserError: a package is missing.
    """
    check_installed()
    import torch
    import transformers

    (name,) = read_json(folder / CONFIG)["architectures"]
    path = folder / FILE
    path.parent.mkdir()
    with _quiet():
        model = getattr(transformers, name).from_pretrained(folder).eval()
        for norm in filter(lambda module: isinstance(module, torch.nn.LayerNorm), model.modules()):
            if norm.bias is None:  # onnxruntime's optimizer expects one
                norm.bias = torch.nn.Parameter(torch.zeros_like(norm.weight))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        inputs = dict(tokenizer(["a text", "another one"], padding=True, truncation=True, return_tensors="pt"))
        with torch.no_grad():
            outputs = model(**inputs)
        axes = {number: torch.export.Dim(axis) for number, axis in enumerate(_AXES)}
        program = torch.onnx.export(
            model,
            kwargs=inputs,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=dict.fromkeys(inputs, axes),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.save(path, external_data=(folder / WEIGHTS).stat().st_size > _MOST_BYTES)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress and the advice of PyTorch and transformers."""
    from transformers.utils import logging as transformers_logging

    log = logging.getLogger("torch.onnx")
    level, bars = log.level, transformers_logging.is_progress_bar_enabled()
    try:
        log.setLevel(logging.ERROR)
        transformers_logging.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()
