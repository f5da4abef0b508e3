"""`electra-jax export`: writes a run or a fine-tuned model as Hugging Face directories."""

from pathlib import Path
from typing import Any

from electra_jax import models
from electra_jax.config import cli
from electra_jax.config.errors import UserError
from electra_jax.config.settings import check_value, one_of
from electra_jax.downstream import finetuned_model
from electra_jax.loading import hub
from electra_jax.loading.huggingface import directory
from electra_jax.runtime.console import PlainConsole

USAGE = """\
usage: electra-jax export --workdir=RUN --output=OUT [--step=N] [--average=N] [--sentence_transformers]
                          [--layers=N] [--onnx] [--as=bert] [--dtype=float16] [--scores='DIR;DIR']
       electra-jax export --model=FINETUNED --output=OUT [--onnx] [--dtype=float16]
       electra-jax export --model=OTHER --output=OUT --onnx

Writes directories for `from_pretrained` of transformers, each with weights, tokenizer and a model card:

  OUT/discriminator  the encoder with its discriminator head: ElectraForPreTraining, or for a ModernBERT
                     ModernBertForTokenClassification with the labels original and replaced, or for a DeBERTa
                     DebertaV2Model with the tensors of its head besides
  OUT/masked_lm      the encoder with its MLM head: ElectraForMaskedLM, ModernBertForMaskedLM,
                     DebertaV2ForMaskedLM
  OUT/generator      the generator, of the same classes as masked_lm
  OUT/encoder        the encoder without a head: ElectraModel, ModernBertModel, DebertaV2Model

With --as=bert the encoder of a BERT or ELECTRA is written as a BertModel, and with an MLM head as a BertForMaskedLM.

Of a fine-tuned model it writes OUT itself: ElectraForSequenceClassification (also for numbers),
ElectraForTokenClassification or ElectraForQuestionAnswering, or the same of ModernBert and DebertaV2, or of Bert where
it was fine-tuned with config.head=bert.

A Hugging Face directory that another trainer wrote, such as sentence-transformers', is copied to OUT, and ONNX files
are added.

  --workdir=RUN      the work directory of a run
  --model=FINETUNED  what electra-jax finetune wrote: its work directory, or one of the models in it
  --model=OTHER      a Hugging Face directory of an ELECTRA, BERT, ModernBERT or DeBERTaV3
  --output=OUT       a directory that does not exist yet, or is empty
  --step=N           the step of the checkpoint (default: the last)
  --average=N        the mean of the weights of the last N checkpoints up to that one
  --sentence_transformers
                     make OUT/encoder a model of sentence vectors for sentence-transformers: means of states
  --layers=N         the first N layers only in OUT/encoder (default: all)
  --onnx             write ONNX files in float32, float16 and int8 into each directory too, for onnxruntime,
                     transformers.js and others. Needs pip install 'electra_jax[onnx]'
  --dtype=float16    store weights in half the size; they are loaded as float32 (default: float32)
  --scores='DIR;DIR' fine-tunings of this run, whose scores the model cards get"""


def main(argv: list[str]) -> int:
    defaults: dict[str, Any] = {
        "workdir": "",
        "model": "",
        "output": "",
        "step": 0,
        "average": 1,
        "sentence_transformers": False,
        "layers": 0,
        "onnx": False,
        "as": "",
        "dtype": "float32",
        "scores": "",
    }
    given = cli.read(argv, USAGE, defaults)
    options = cli.choose(given, defaults)
    source = cli.choose_one(options, "workdir", "model")
    cli.require(options, (source, "output"), "try --workdir=runs/tiny --output=exported, or --help")
    model = hub.local(Path(options["model"]))
    if source == "model" and finetuned_model.find(model) is None and not directory.is_directory(model):
        raise UserError(f"--model={model} was not fine-tuned; export a run with --workdir")
    # By `given`, not by the value: an empty one is invalid too.
    if "as" in given:
        check_value("--as", options["as"], one_of("bert"))
    check_value("--dtype", options["dtype"], one_of(*directory.DTYPES))
    # By `given`: 0 is a step too, and without the option it is that of the last checkpoint.
    step = options["step"] if "step" in given else None
    chosen = {name: options[name] for name in ("average", "sentence_transformers", "layers", "onnx", "dtype")}
    scores = [folder for folder in options["scores"].split(";") if folder]
    classes = models.export(
        model if source == "model" else options[source],
        options["output"],
        step,
        **chosen,
        as_bert=bool(options["as"]),
        scores=scores,
    )
    console = PlainConsole()
    for name, class_name in classes.items():
        console.print(f"{Path(options['output'], name)}: {class_name}")
    return 0
