"""The batch type of pre-training."""

from typing import Any, NamedTuple


class Batch(NamedTuple):
    """Sequences of one length, as NumPy or JAX arrays.

    Attributes:
      input_ids: [B, L] int32, token ids, PAD in padding.
      token_type_ids: [B, L] int32, 0 in the first segment, 1 in the second (its SEP included), 0 in padding.
      sequence_ids: [B, L] int32, 0 in padding; positions attend to each other only where their numbers are equal.
    """

    input_ids: Any
    token_type_ids: Any
    sequence_ids: Any
