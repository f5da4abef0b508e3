"""Which documents repeat earlier ones: exact copies by their digests, near-duplicates by MinHash signatures.

Signatures are computed where documents are read; the decision is made in one place, in the order of the text. So it
does not depend on the number of processes: the first of several documents is kept.

A signature has 128 hash values of the shingles of a document (Broder, 1997): the share of equal values in two of them
estimates the Jaccard similarity of the two sets of shingles. Where at most m values differ,
one of any m + 1 bands of the signatures is equal, so an index of that many bands finds every document that is similar
enough.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from electra_jax.config.errors import UserError
from electra_jax.data.documents import Document, make_document

DUPLICATE = "duplicates of earlier documents, left out"
NEAR_DUPLICATE = "near-duplicates of earlier documents, left out"

_HASHES = 128  # standard deviation of the estimated similarity: at most 0.044
_SHINGLE = 5  # words
_EMPTY = make_document("", b"").digest

Signatures = npt.NDArray[np.uint32]


class Fingerprints(NamedTuple):
    """What decides about the documents of a chunk.

    Attributes:
      digests: eight bytes of each document, of its exact text.
      signatures: [documents, 128]; None where near-duplicates are kept.
    """

    digests: list[bytes]
    signatures: Signatures | None


def fingerprints(documents: Sequence[Document], threshold: float) -> Fingerprints:
    """The fingerprints of documents.

    Args:
      documents: the documents.
      threshold: similarity from which documents are near-duplicates; 0: signatures are not computed.

    Raises:
      UserError: rensa, which computes signatures, is not installed.
    """
    digests = [document.digest for document in documents]
    if not threshold:
        return Fingerprints(digests, None)
    rows = [_signature(document.text.decode(errors="replace")) for document in documents]
    return Fingerprints(digests, np.array(rows, np.uint32).reshape(-1, _HASHES))


def require_package() -> None:
    """Raises UserError where rensa is not installed."""
    try:
        import rensa  # noqa: F401
    except ImportError as error:
        raise UserError("near_duplicates needs rensa; pip install 'electra_jax[near_duplicates]'") from error


def _signature(text: str) -> list[int]:
    """The MinHash signature of the runs of five words in a text, whose case does not matter."""
    from rensa import RMinHash

    words = text.lower().split()
    shingles = [" ".join(words[i : i + _SHINGLE]) for i in range(max(1, len(words) - _SHINGLE + 1))]
    minhash = RMinHash(num_perm=_HASHES, seed=0)
    minhash.update(shingles)
    return list(minhash.digest())


class SeenDocuments:
    """The documents so far."""

    def __init__(self, threshold: float):
        """Of none; `threshold` is the similarity from which documents are near-duplicates, or 0."""
        self._digests: set[bytes] = set()
        self._similar = _SimilarDocuments(threshold) if threshold else None

    def find_duplicates(self, found: Fingerprints) -> dict[int, str]:
        """The documents of the next chunk that repeat earlier ones, by index, each with the note about it.

        The others are remembered. Empty documents repeat nothing.
        """
        duplicates = {}
        for i, digest in enumerate(found.digests):
            if digest == _EMPTY:
                continue
            if digest in self._digests:
                duplicates[i] = DUPLICATE
            elif self._similar and found.signatures is not None and self._similar.has_or_adds(found.signatures[i]):
                duplicates[i] = NEAR_DUPLICATE
            self._digests.add(digest)
        return duplicates


class _SimilarDocuments:
    """An index of signatures, by their bands. Each band of each document begins or prolongs a chain of documents."""

    def __init__(self, threshold: float):
        self._needed = int(np.ceil(threshold * _HASHES - 1e-9))  # equal values
        bands = _HASHES - self._needed + 1
        self._bounds = np.linspace(0, _HASHES, bands + 1).astype(int).tolist()
        self._latest: list[dict[bytes, int]] = [{} for _ in range(bands)]  # by band: its values -> latest document
        self._signatures = np.zeros((1024, _HASHES), np.uint32)
        self._earlier = np.zeros((1024, bands), np.int32)  # by document and band: the one before in the chain, or -1
        self._count = 0

    def has_or_adds(self, signature: Signatures) -> bool:
        """Whether there is a similar document; if not, this one is added."""
        data = signature.tobytes()
        keys = [data[4 * begin : 4 * end] for begin, end in zip(self._bounds, self._bounds[1:], strict=False)]
        latest = [chains.get(key, -1) for chains, key in zip(self._latest, keys, strict=True)]
        compared = set[int]()
        for band, document in enumerate(latest):
            while document >= 0:
                if document not in compared:
                    compared.add(document)
                    if np.count_nonzero(self._signatures[document] == signature) >= self._needed:
                        return True
                document = int(self._earlier[document, band])
        self._add(signature, keys, latest)
        return False

    def _add(self, signature: Signatures, keys: list[bytes], latest: list[int]) -> None:
        if self._count == len(self._signatures):
            self._signatures = np.concatenate([self._signatures, np.zeros_like(self._signatures)])
            self._earlier = np.concatenate([self._earlier, np.zeros_like(self._earlier)])
        self._signatures[self._count], self._earlier[self._count] = signature, latest
        for chains, key in zip(self._latest, keys, strict=True):
            chains[key] = self._count
        self._count += 1
