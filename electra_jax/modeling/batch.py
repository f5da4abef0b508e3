"""The arrays that every network reads."""

from typing import Any, NamedTuple


class Batch(NamedTuple):
    """Rows of tokens, each [B, L] int32.

    Attributes:
      input_ids: ids of the tokens.
      token_type_ids: the segment of each token, 0 or 1.
      sequence_ids: from 1, the number of the sequence that a token belongs to; 0 for padding.
    """

    input_ids: Any
    token_type_ids: Any
    sequence_ids: Any
