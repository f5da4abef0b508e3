"""SentencePiece models as protobuf messages, with the fields of sentencepiece_model.proto used here; others are kept.

The sentencepiece package has such a module too, but it rejects protobuf versions older than its generator.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # types of pieces
UNIGRAM, BPE = 1, 2  # types of models

_Field = descriptor_pb2.FieldDescriptorProto
# Numbers and defaults are those of sentencepiece_model.proto; its enums are int32 here, which is the same on the wire.
_MESSAGES: dict[str, list[tuple[Any, ...]]] = {  # name, number, type or message, and a default
    "Piece": [("piece", 1, _Field.TYPE_STRING), ("score", 2, _Field.TYPE_FLOAT), ("type", 3, _Field.TYPE_INT32, "1")],
    "Trainer": [
        ("model_type", 3, _Field.TYPE_INT32, "1"),
        ("treat_whitespace_as_suffix", 24, _Field.TYPE_BOOL),
        ("byte_fallback", 35, _Field.TYPE_BOOL),
    ],
    "Normalizer": [
        ("name", 1, _Field.TYPE_STRING),
        ("precompiled_charsmap", 2, _Field.TYPE_BYTES),
        ("add_dummy_prefix", 3, _Field.TYPE_BOOL, "true"),
        ("remove_extra_whitespaces", 4, _Field.TYPE_BOOL, "true"),
        ("escape_whitespaces", 5, _Field.TYPE_BOOL, "true"),
    ],
    "Model": [("pieces", 1, "Piece"), ("trainer_spec", 2, "Trainer"), ("normalizer_spec", 3, "Normalizer")],
}


def _model_class() -> Any:
    package = "electra_jax.sentencepiece"
    # proto2, as the original: proto3 has no default values.
    file = descriptor_pb2.FileDescriptorProto(name="electra_jax/sentencepiece.proto", package=package, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, *default in fields:
            added = message.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL)
            if isinstance(kind, str):
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = kind
            if default:
                added.default_value = default[0]
            if field == "pieces":
                added.label = _Field.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Model"))


_MODEL = _model_class()


def parse(model: bytes) -> Any:
    """Parses a model into a message: `pieces` of piece, score and type; `trainer_spec`; `normalizer_spec`.

    Raises:
      ValueError: `model` is not a SentencePiece model.
    """
    message = _MODEL()
    try:
        message.ParseFromString(model)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    # Other bytes can parse as a message of unknown fields.
    if not message.pieces:
        raise ValueError("it has no pieces")
    return message
