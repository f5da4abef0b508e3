"""Tiling of the arrays of `pallas_attention`, and the static parameters of its kernels."""

import dataclasses
import math

LANES = 128  # of a register; queries are taken in chunks of as many, and lengths are padded to a multiple of it
ONE_SPAN = 1024  # up to this length all keys are one span


@dataclasses.dataclass(frozen=True)
class Form:
    """Static parameters of the kernels.

    Attributes:
      heads: the number of heads in the arrays.
      rate: the dropout rate of attention weights.
      direction: as in `attention.Visible`.
      reach: the number of positions that are visible on each side; None: the whole sequence.
      native: whether matrix units take bfloat16; Mosaic for TPU v2 and v3 requires float32, which they round.
      vmem: bytes of a core's memory that a kernel may use; None: the compiler's default.
      gpu: whether the kernels are those of `triton_attention`.
      interpret: whether to interpret the kernels, on any device.
    """

    heads: int
    rate: float = 0.0
    direction: str = "both"
    reach: int | None = None
    native: bool = True
    vmem: int | None = None
    gpu: bool = False
    interpret: bool = False

    def __post_init__(self) -> None:
        if self.rate and self.reach is not None:
            # Spans of a window begin at any block of 128 keys; those with dropout must begin at a multiple of 256.
            raise NotImplementedError("no encoder has dropout on the weights of local attention")


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Tiling of the arrays.

    Attributes:
      length: the padded sequence length.
      width: the width of all heads together.
      group: the number of lanes of a group of heads.
      per: the number of heads in a group.
      queries: the number of queries of a program.
      span: the number of keys that are computed at once.
    """

    length: int
    width: int
    group: int
    per: int
    queries: int
    span: int

    @property
    def groups(self) -> int:
        return self.width // self.group

    @property
    def size(self) -> int:
        """Size of a head."""
        return self.group // self.per

    @property
    def hash_rows(self) -> int:
        """Number of rows of dropout hashes for a span of keys; each row decides about two keys."""
        return math.ceil(self.span / (2 * LANES)) * LANES

    @property
    def aligned(self) -> bool:
        """True if a group can be read directly from the array of queries, keys and values."""
        return self.group % LANES == 0


def group_size(width: int, heads: int) -> int:
    """Returns the lanes that a program reads: 128 or one head if that divides the width into registers, else all."""
    size = width // heads
    candidates = [lanes for lanes in (LANES, size) if lanes % LANES == 0 and lanes % size == 0 and width % lanes == 0]
    return candidates[0] if candidates else width


def tiles_of(form: Form, length: int, width: int) -> Tiles:
    """Returns the tiles for sequences of a length, if `form.heads` heads together are `width` wide."""
    size, group = width // form.heads, group_size(width, form.heads)
    # Several spans must divide the length and begin at multiples of 256 keys, since one row of hashes serves two keys.
    step = LANES if length <= ONE_SPAN else 2 * LANES
    padded = math.ceil(length / step) * step
    queries = next(size for size in (512, 256, 128) if padded % size == 0)
    span = padded
    if form.reach is not None:
        # The 128 queries' own block of keys, and on each side the blocks that the window reaches.
        span = min(padded, LANES + 2 * math.ceil(form.reach / LANES) * LANES)
    elif padded > ONE_SPAN:
        span = next(size for size in (512, 256) if padded % size == 0)
    return Tiles(padded, width, group, group // size, queries, span)


def pairs(form: Form, length: int, width: int) -> int:
    """Counts the pairs of query and key whose scores are computed per example and head, padding included."""
    t = tiles_of(form, length, width)
    return t.length * (t.span if form.reach is not None else t.length)
