"""A text for tests of vocabularies, the same under every Python: prose, code, and characters and spaces of all kinds.

Its words are made of syllables, and a word is the rarer the higher its rank, as in a language (Zipf's law).
"""

import random
import re

_FIRST = ["", *"bcdfghjklmnprstvwz", "st", "tr", "pl", "ch", "sh", "qu", "th"]
_SECOND = [*"aeiou", "ea", "ou", "ai", "ee"]
_THIRD = ["", "", "", *"nrstlmdxy", "nd", "ng", "ck", "st", "ff"]
_RANKS = 3000
# Words with letters that a normalization changes: composed ones, final sigmas, half and full width, ligatures.
_FOREIGN = ["stra\u00dfe", "\u00fcber", "\u00c4pfel", "\u00e9t\u00e9", "fa\u00e7ade", "\u00d1and\u00fa"]
_FOREIGN += ["\u00e5ngstr\u00f6m", "\u0130zmir", "\u0142\u00f3d\u017a", "\u03bb\u03cc\u03b3\u03bf\u03c2"]
_FOREIGN += ["\u039f\u0394\u039f\u03a3", "\u043c\u0438\u0440", "\u041c\u043e\u0441\u043a\u0432\u0430"]
_FOREIGN += ["\u05e9\u05dc\u05d5\u05dd", "\u0633\u0644\u0627\u0645", "\u0928\u092e\u0938\u094d\u0924\u0947"]
_FOREIGN += ["\u0e19\u0e49\u0e33", "\u4f60\u597d", "\u6771\u4eac", "\u30ab\u30bf\u30ab\u30ca", "\u3072\u3089\u304c"]
_FOREIGN += ["\uff76\uff9e\uff77\uff9e", "\ud55c\uad6d\uc5b4", "\ufb01ne", "\uff21\uff22\uff23", "\u2460", "\u00bd"]
_FOREIGN += ["\u2126", "x\u00b2", "\U0001f600", "\U0001d400"]
_SPACES = ["  ", "    ", "\t", "\u00a0", "\u3000"]
# $w: a word, $W: in capitals, $n: a number.
_CODE = r"""
>>> $w($w, $w=$n)
>>> $w.$w[$n:$n] != {'$w': $n.$n}
    def $w(self, $w=None, *$w, **$w):
    return $w + $w * ($n - $w) / $n
    raise $W("$w: %s" % $w) from $w
... $w = [$w for $w in $w if $w >= $n]
-$w, --$w=$W $w $w (default: $n)
usage: $w [-h] [--$w $W] {$w,$w} ...
/usr/$w/$w_$w.py:$n: $w
see <$w@$w.org>, https://$w.$w.com/$w?$w=$n&$w
`$w` is $$n,$n or $n% of #$n; ~$w
|  $w  |  $n  |  $w  |
$n) $w^$n \$w\n!
$w's $w isn't $w?
""".strip("\n").split("\n")
# Runs have several segmentations of one score.
_RUNS = ["=" * 12, "-" * 9, "~~~~~~~", ">>>", "* * * *", "(((  )))", "aaaaaaaa", "hahahaha", ". . . ...."]


def _pick(rng: random.Random, choices: list[str]) -> str:
    """By `random()`: of this method alone, Python promises the same numbers in every version."""
    return choices[int(rng.random() * len(choices))]


def _word(rng: random.Random) -> str:
    """Of rank r with a probability of about 1/r."""
    rank = int(_RANKS ** rng.random())
    made = random.Random(rank)
    syllables = 1 + (rank > 40) + (rank > 400)
    return "".join(_pick(made, part) for _ in range(syllables) for part in (_FIRST, _SECOND, _THIRD))


def _prose(rng: random.Random) -> str:
    words = [_word(rng) for _ in range(3 + int(9 * rng.random()))]
    words[0] = words[0].capitalize()
    if rng.random() < 0.2:
        words.insert(int(len(words) * rng.random()), _pick(rng, _FOREIGN))
    if rng.random() < 0.1:
        words[-1] += _pick(rng, _SPACES) + _word(rng)
    return " ".join(words) + _pick(rng, [".", ".", ".", ",", ":", "?", "!", "\u2026"])


def _code(rng: random.Random) -> str:
    drawn = {"w": lambda: _word(rng), "W": lambda: _word(rng).upper(), "n": lambda: str(int(10 ** (4 * rng.random())))}
    return re.sub(r"\$([wWn])", lambda match: drawn[match[1]](), _pick(rng, _CODE))


def make_lines(number: int, runs: bool = True) -> list[str]:
    """As many lines, two thirds of them prose; the first are the same for every number.

    Args:
      number: of lines.
      runs: whether some are repetitions of one sign or syllable.
    """
    rng = random.Random(0)
    lines = []
    for i in range(number):
        drawn = [_prose(rng), _prose(rng), _code(rng)][i % 3]
        run = _pick(rng, _RUNS)
        lines.append(f"{drawn} {run}" if runs and i % 24 == 5 else run if runs and i % 24 == 17 else drawn)
    return lines
