"""Names of parameters here and in Hugging Face's classes; `huggingface.weights` converts by them in both directions."""

from typing import NamedTuple

LAYERS = "encoder/layers"


class Tensor(NamedTuple):
    """A parameter, and its names in Hugging Face's classes.

    Attributes:
      ours: its path in electra_jax.
      theirs: its names in Hugging Face, with {} for the layer's number. Several tensors are concatenated along their
        first axis.
      inputs: number of leading input axes of a linear layer's kernel; 0 for other parameters.
      first: the first layer that has this parameter.
      labels: whether Hugging Face's tensor has a row of zeros before it: the logit of the label "original".
    """

    ours: str
    theirs: tuple[str, ...]
    inputs: int = 0
    first: int = 0
    labels: bool = False


def linear(ours: str, *theirs: str, inputs: int = 1, labels: bool = False) -> list[Tensor]:
    return [
        Tensor(f"{ours}/kernel", tuple(f"{name}.weight" for name in theirs), inputs, labels=labels),
        # Listed for networks without biases too: conversion goes by the parameters that there are.
        Tensor(f"{ours}/bias", tuple(f"{name}.bias" for name in theirs), labels=labels),
    ]


def norm(ours: str, theirs: str, first: int = 0) -> list[Tensor]:
    return [
        Tensor(f"{ours}/scale", (f"{theirs}.weight",), first=first),
        Tensor(f"{ours}/bias", (f"{theirs}.bias",), first=first),
    ]


# Heads of fine-tuned BERTs and DeBERTas that read each token.
TOKEN_HEADS = {"tagging": linear("head/classifier", "classifier"), "answering": linear("head/classifier", "qa_outputs")}


def post_norm_layers(projection: str) -> list[Tensor]:
    """Returns the layers of BERT and DeBERTa; `projection` names the matrices, with {} for query, key or value."""
    # In the order of the kernel's axis of size 3.
    roles = (projection.format(role) for role in ("query", "key", "value"))
    return [
        *linear(f"{LAYERS}/attention/qkv", *(f"encoder.layer.{{}}.attention.self.{role}" for role in roles)),
        # The kernel is [H, K, D]: two input axes.
        *linear(f"{LAYERS}/attention/out", "encoder.layer.{}.attention.output.dense", inputs=2),
        *norm(f"{LAYERS}/attention_norm", "encoder.layer.{}.attention.output.LayerNorm"),
        *linear(f"{LAYERS}/ffn_in", "encoder.layer.{}.intermediate.dense"),
        *linear(f"{LAYERS}/ffn_out", "encoder.layer.{}.output.dense"),
        *norm(f"{LAYERS}/ffn_norm", "encoder.layer.{}.output.LayerNorm"),
    ]
