"""A vocabulary of letters, for tests in which it does not matter."""

import numpy as np

from electra_jax.data import tokenizer


class Letters(tokenizer.Tokenizer):
    """A piece a letter: a is 10. Other characters are unknown."""

    special = tokenizer.OWN
    word_starts = np.ones(60, bool)
    marks_words = True

    def encode(self, lines, threads=1):
        return [[self._of(letter) for letter in line if letter != " "] for line in lines]

    def _of(self, letter):
        return ord(letter) - ord("a") + 10 if "a" <= letter <= "z" else self.special.unk

    def decode(self, ids):
        return "".join(chr(i - 10 + ord("a")) for i in ids)

    def name_of(self, id_):
        return self.decode([id_])

    def spans(self, text):
        return self.encode([text])[0], [(i, i + 1) for i in range(len(text)) if text[i] != " "]
