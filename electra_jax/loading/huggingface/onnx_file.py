"""Adds ONNX files to a Hugging Face directory, exported by PyTorch from the transformers class.

The files have the names that transformers.js looks for. This is the only module that needs PyTorch. The ready-made
exporters cannot be installed next to this package: optimum-onnx 0.1 needs transformers 4, and jax2onnx 0.17 an
orbax-checkpoint below 0.11.37.
"""

import contextlib
import logging
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

from electra_jax.config.errors import UserError
from electra_jax.loading.huggingface import directory
from electra_jax.runtime.io import check_output, new_folder, read_json

FILE = Path("onnx", "model.onnx")  # optimum looks there too
FLOAT16 = FILE.with_name("model_fp16.onnx")  # for GPUs and WebGPU
INT8 = FILE.with_name("model_quantized.onnx")  # what transformers.js loads in a browser by default
OPSET = 18
_LEFT_OUT = (FILE.parent.name, "checkpoint-*", "runs", ".git")
_AXES = ("batch", "sequence")
# Protocol buffers are limited to 2 GiB. The weights of a larger model go to a second file, such as model.onnx.data.
_MOST_BYTES = 2**31 - 2**24


def check_installed() -> None:
    """Raises UserError if a package that `write` needs is missing."""
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError(f"ONNX files need {error.name}; pip install 'electra_jax[onnx]'") from error


def copy_with_onnx(source: Path, output: Path) -> str:
    """Copies a Hugging Face directory without checkpoints of its training, and adds ONNX files as `write` does.

    Returns:
      The name of transformers' class.

    Raises:
      UserError: `output` is not empty, or is inside `source`; a package is missing; `directory.read` refuses the model,
        transformers has no such class, or there is no tokenizer.
    """
    check_output(output)
    # The copy would contain itself.
    if output.is_relative_to(source.resolve()):
        raise UserError(f"{output} is inside {source}; use another --output")
    check_installed()
    import transformers

    # A model that this package does not read is refused before it is copied.
    if directory.read(source).tokenizer is None:
        raise UserError(f"{source} has no tokenizer: expected tokenizer.json; save the tokenizer there")
    path = source / directory.CONFIG
    names = read_json(path).get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not hasattr(transformers, str(names[0])):
        raise UserError(f"{path} has architectures={names!r}: expected the name of one class of transformers")
    if names[0].endswith("ForMultipleChoice"):  # whose inputs have an axis of choices
        raise UserError(f"{path} is a model of multiple choice, for which no ONNX files are made")
    with new_folder(output) as partial:
        shutil.copytree(source, partial, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        write(partial)
    return str(names[0])


def write(folder: Path) -> None:
    """Writes `FILE`, `FLOAT16` and `INT8` into a directory that transformers reads.

    `FLOAT16` has weights and activations in float16. `INT8` has 8-bit weights, with a scale per column of a matrix and
    one per table, and quantizes activations at run time: onnxruntime's dynamic quantization.

    Inputs are those of the directory's tokenizer, int64 [batch, sequence] of any batch size and length. Outputs are
    those of the transformers class, float32, under its names: `logits`, `start_logits` and `end_logits`, or
    `last_hidden_state`.

    Raises:
      UserError: a package is missing.
    """
    check_installed()
    import onnx
    import torch
    import transformers
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.float16 import convert_float_to_float16

    (name,) = read_json(folder / directory.CONFIG)["architectures"]
    path = folder / FILE
    path.parent.mkdir()
    with _quiet():
        pooler = {"add_pooling_layer": False} if name == "BertModel" else {}  # sentence vectors do not read it
        # In float32, whatever the weights are stored in: the other two files are made from this one.
        model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32, **pooler).eval()
        for norm in filter(lambda module: isinstance(module, torch.nn.LayerNorm), model.modules()):
            if norm.bias is None:  # onnxruntime's optimizer requires one
                norm.bias = torch.nn.Parameter(torch.zeros_like(norm.weight))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        # Two rows of several tokens: torch.export takes a dimension of size 1 for a constant.
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
        large = sum(4 * parameter.numel() for parameter in model.parameters()) > _MOST_BYTES  # in float32
        program.save(path, external_data=large)
        half = convert_float_to_float16(str(path), keep_io_types=True)  # a model in memory is limited to 2 GiB
        onnx.save(half, folder / FLOAT16, save_as_external_data=large, location=f"{FLOAT16.name}.data")
        int8 = {"weight_type": QuantType.QInt8, "per_channel": True, "use_external_data_format": large}
        quantize_dynamic(path, folder / INT8, **int8)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that silences logs, warnings and progress bars of PyTorch, transformers and onnxruntime."""
    from transformers.utils import logging as transformers_logging

    disabled, bars = logging.root.manager.disable, transformers_logging.is_progress_bar_enabled()
    try:
        logging.disable(logging.WARNING)
        transformers_logging.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        if bars:
            transformers_logging.enable_progress_bar()
