"""The arrays of a batch of examples."""

from typing import Any, NamedTuple


class Batch(NamedTuple):
    """A batch of examples, NumPy or JAX arrays.

    Attributes:
      input_ids: [B, L] int32, the tokens.
      token_type_ids: [B, L] int32, 1 in the second segment of a pair, else 0.
      sequence_ids: [B, L] int32, 0 for padding; a row that packs several sequences numbers them from 1. Attention and
        positions do not cross sequences.
    """

    input_ids: Any
    token_type_ids: Any
    sequence_ids: Any
