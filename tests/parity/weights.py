"""Our parameters by the names of transformers' PyTorch classes: a linear map's weight is [out, in] there.

Layers are stacked on a first axis here and numbered there; query, key and value are one kernel [layers, D, 3, H, K]
here, in ELECTRA's classes three matrices, in ModernBERT's one. The vocabulary is not padded there. The functions work
on arrays of NumPy and JAX, and so under `jax.eval_shape`.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax

State = dict[str, Any]  # name -> array
Tree = Any


def electra_for_pre_training(params: Tree, vocab_size: int) -> State:
    """`transformers.ElectraForPreTraining`: our encoder and discriminator head."""
    head = params["discriminator_head"]
    return {
        **_electra(params["embeddings"], params["encoder"], vocab_size),
        **_linear("discriminator_predictions.dense", head["dense"]),
        **_linear("discriminator_predictions.dense_prediction", head["classifier"]),
    }


def electra_for_masked_lm(params: Tree, vocab_size: int) -> State:
    """`transformers.ElectraForMaskedLM`: our generator and its head, which decodes with the word table."""
    head = params["generator_head"]
    return {
        **_electra(params["embeddings"], params["generator"], vocab_size),
        **_linear("generator_predictions.dense", head["dense"]),
        **_norm("generator_predictions.LayerNorm", head["norm"]),
        "generator_lm_head.weight": params["embeddings"]["word"][:vocab_size],
        "generator_lm_head.bias": head["bias"][:vocab_size],
    }


def modernbert_for_masked_lm(params: Tree, vocab_size: int) -> State:
    """`transformers.ModernBertForMaskedLM`: our ModernBERT encoder and its MLM head; tables as wide as the encoder."""
    head = params["mlm_head"]
    return {
        **_modernbert(params["embeddings"], params["encoder"], vocab_size),
        **_linear("head.dense", head["dense"]),
        **_norm("head.norm", head["norm"]),
        "decoder.weight": params["embeddings"]["word"][:vocab_size],
        "decoder.bias": head["bias"][:vocab_size],
    }


def modernbert_for_token_classification(params: Tree, vocab_size: int) -> State:
    """`transformers.ModernBertForTokenClassification` of one label: our ModernBERT encoder and discriminator head."""
    head = params["discriminator_head"]
    return {
        **_modernbert(params["embeddings"], params["encoder"], vocab_size),
        **_linear("head.dense", head["dense"]),
        **_norm("head.norm", head["norm"]),
        **_linear("classifier", head["classifier"]),
    }


def _electra(embeddings: Tree, encoder: Tree, vocab_size: int) -> State:
    state = {
        "electra.embeddings.word_embeddings.weight": embeddings["word"][:vocab_size],
        "electra.embeddings.position_embeddings.weight": embeddings["position"],
        "electra.embeddings.token_type_embeddings.weight": embeddings["segment"],
        **_norm("electra.embeddings.LayerNorm", embeddings["norm"]),
    }
    if "project" in encoder:
        state |= _linear("electra.embeddings_project", encoder["project"])
    for i, layer in _each(encoder["layers"]):
        name, qkv, out = f"electra.encoder.layer.{i}", layer["attention"]["qkv"], layer["attention"]["out"]
        for part, role in enumerate(("query", "key", "value")):
            state |= _linear(f"{name}.attention.self.{role}", {k: v[..., part, :, :] for k, v in qkv.items()})
        state |= _linear(f"{name}.attention.output.dense", out, inputs=2)
        state |= _norm(f"{name}.attention.output.LayerNorm", layer["attention_norm"])
        state |= _linear(f"{name}.intermediate.dense", layer["ffn_in"])
        state |= _linear(f"{name}.output.dense", layer["ffn_out"])
        state |= _norm(f"{name}.output.LayerNorm", layer["ffn_norm"])
    return state


def _modernbert(embeddings: Tree, encoder: Tree, vocab_size: int) -> State:
    state = {
        "model.embeddings.tok_embeddings.weight": embeddings["word"][:vocab_size],
        **_norm("model.embeddings.norm", encoder["embedding_norm"]),
    }
    for i, layer in _each(encoder["layers"]):
        name = f"model.layers.{i}"
        if i > 0:  # the first layer reads the embedding's norm; our entry for it in the stack is not used
            state |= _norm(f"{name}.attn_norm", layer["attention_norm"])
        state |= _linear(f"{name}.attn.Wqkv", layer["attention"]["qkv"])
        state |= _linear(f"{name}.attn.Wo", layer["attention"]["out"], inputs=2)
        state |= _norm(f"{name}.mlp_norm", layer["ffn_norm"])
        state |= _linear(f"{name}.mlp.Wi", layer["ffn_in"])
        state |= _linear(f"{name}.mlp.Wo", layer["ffn_out"])
    return state | _norm("model.final_norm", encoder["final_norm"])


def _each(layers: Tree) -> Iterator[tuple[int, Tree]]:
    for i in range(jax.tree.leaves(layers)[0].shape[0]):
        yield i, jax.tree.map(lambda x, i=i: x[i], layers)


def _linear(name: str, dense: Tree, inputs: int = 1) -> State:
    """Of a kernel whose first `inputs` axes are what comes in, all others what goes out."""
    kernel = dense["kernel"]
    state = {f"{name}.weight": kernel.reshape(math.prod(kernel.shape[:inputs]), -1).T}
    return state | ({f"{name}.bias": dense["bias"].reshape(-1)} if "bias" in dense else {})


def _norm(name: str, norm: Tree) -> State:
    return {f"{name}.weight": norm["scale"]} | ({f"{name}.bias": norm["bias"]} if "bias" in norm else {})
