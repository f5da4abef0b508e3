"""Deduplication: exact copies by digest, near-duplicates by MinHash.

Signatures are computed where documents are read; duplicates are decided in one place, in text order. So the result does
not depend on the number of processes: the first of several copies is kept.

A signature has 128 hash values of a document's shingles (Broder, 1997): the fraction of equal values in two signatures
estimates the Jaccard similarity of the two sets of shingles. If at most m values differ, at least one of any m + 1
bands of the signatures is equal, so an index of m + 1 bands finds every document that is similar enough.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from electra_jax.config.errors import UserError
from electra_jax.data.documents import Document, hashed

DUPLICATE = "duplicates of earlier documents, left out"
NEAR_DUPLICATE = "near-duplicates of earlier documents, left out"

# The estimated similarity has a standard deviation of at most sqrt(.25 / 128) = 0.044.
_HASHES = 128
_SHINGLE = 5  # words
_EMPTY = hashed(Document("", b"")).digest

Signatures = npt.NDArray[np.uint32]


class Fingerprints(NamedTuple):
    """The hashes of a chunk's documents that deduplication compares.

    Attributes:
      digests: 8-byte hash of each document's exact text.
      signatures: [documents, 128]; None if near-duplicates are kept.
    """

    digests: list[bytes]
    signatures: Signatures | None


def fingerprints(documents: Sequence[Document], threshold: float) -> Fingerprints:
    """Computes the fingerprints of documents.

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
    """Raises UserError if rensa is not installed."""
    try:
        import rensa  # noqa: F401
    except ImportError as error:
        raise UserError("near_duplicates needs rensa; pip install 'electra_jax[near_duplicates]'") from error


def _signature(text: str) -> list[int]:
    """Computes the MinHash signature of the five-word shingles of a text, ignoring case."""
    # It takes 4 ms per megabyte; datasketch takes 208, which is more than the tokenizer.
    from rensa import RMinHash

    words = text.lower().split()
    # A text of fewer than five words is one shingle.
    shingles = [" ".join(words[i : i + _SHINGLE]) for i in range(max(1, len(words) - _SHINGLE + 1))]
    # A constant seed: a continued preparation must find the same duplicates.
    minhash = RMinHash(num_perm=_HASHES, seed=0)
    minhash.update(shingles)
    return list(minhash.digest())


class SeenDocuments:
    """The documents seen so far, for deduplication."""

    def __init__(self, threshold: float):
        """Starts with none; `threshold` is the similarity from which documents are near-duplicates, 0 to keep these."""
        self._digests: set[bytes] = set()
        self._similar = _SimilarDocuments(threshold) if threshold else None

    def find_duplicates(self, found: Fingerprints) -> dict[int, str]:
        """Returns the index of each document of the next chunk that repeats an earlier one, with its note.

        The chunk's documents then count as seen. Empty documents are not duplicates.
        """
        duplicates = {}
        for i, digest in enumerate(found.digests):
            if digest == _EMPTY:
                continue
            if digest in self._digests:
                duplicates[i] = DUPLICATE
            elif self._similar and found.signatures is not None and self._similar.has_or_adds(found.signatures[i]):
                duplicates[i] = NEAR_DUPLICATE
            # A near-duplicate's digest is added too: a later copy of it is an exact duplicate.
            self._digests.add(digest)
        return duplicates


class _SimilarDocuments:
    """An index of signatures by band. Each band of a document starts a chain of documents, or extends one."""

    def __init__(self, threshold: float):
        self._needed = math.ceil(threshold * _HASHES)  # number of equal values
        bands = _HASHES - self._needed + 1
        # 128 is seldom a multiple of the number of bands, so their widths may differ by one.
        self._bounds = np.linspace(0, _HASHES, bands + 1).astype(int).tolist()
        self._latest: list[dict[bytes, int]] = [{} for _ in range(bands)]  # by band: its values -> latest document
        self._signatures = np.zeros((1024, _HASHES), np.uint32)
        self._earlier = np.zeros((1024, bands), np.int32)  # by document and band: the one before in the chain, or -1
        self._count = 0

    def has_or_adds(self, signature: Signatures) -> bool:
        """True if there is a similar document; if not, adds this one."""
        data = signature.tobytes()
        keys = [data[4 * begin : 4 * end] for begin, end in zip(self._bounds, self._bounds[1:], strict=False)]
        latest = [chains.get(key, -1) for chains, key in zip(self._latest, keys, strict=True)]
        # Similar documents are in the same chain of several bands.
        compared = set[int]()
        for band, document in enumerate(latest):
            while document >= 0:
                if document not in compared:
                    compared.add(document)
                    if np.count_nonzero(self._signatures[document] == signature) >= self._needed:
                        return True
                document = int(self._earlier[document, band])
        # A document that is left out is not added: later ones are compared with those that are kept.
        self._add(signature, keys, latest)
        return False

    def _add(self, signature: Signatures, keys: list[bytes], latest: list[int]) -> None:
        if self._count == len(self._signatures):
            # Doubled, so that the copies take constant time per document.
            self._signatures = np.concatenate([self._signatures, np.zeros_like(self._signatures)])
            self._earlier = np.concatenate([self._earlier, np.zeros_like(self._earlier)])
        self._signatures[self._count], self._earlier[self._count] = signature, latest
        for chains, key in zip(self._latest, keys, strict=True):
            chains[key] = self._count
        self._count += 1
