"""Texts in the terminal with suspected words marked: shaded in color, or followed by their probability."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.text import Text

from electra_jax.config.printable import printable
from electra_jax.runtime.console import PlainConsole

# Minimum probability for each style, and the style.
_SHADES = ((0.5, "bold white on red3"), (0.3, "black on orange1"), (0.15, "black on light_goldenrod1"))


class Mark(NamedTuple):
    """A span of a text, with the probability that it was replaced.

    Attributes:
      begin, end: the characters [begin, end).
      probability: the probability that it was replaced.
      replaced: whether it was replaced; False where that is unknown.
    """

    begin: int
    end: int
    probability: float
    replaced: bool = False


def render_marked(text: str, marks: Sequence[Mark], colors: bool) -> Text:
    """Renders a text with its marks.

    Args:
      text: the text as it was given.
      marks: in the order of the text, without overlaps.
      colors: shade words by probability and underline replaced ones. Otherwise a suspected word is followed by its
        probability, and a replaced word stands between stars.
    """
    rendered, position = Text(), 0
    for mark in marks:
        rendered.append(printable(text[position : mark.begin]))
        word, position = printable(text[mark.begin : mark.end]), mark.end
        style = next((style for bound, style in _SHADES if mark.probability >= bound), "")
        if colors:
            rendered.append(word, style=f"{style} underline" if mark.replaced else style)
        else:
            rendered.append(f"*{word}*" if mark.replaced else word)
            rendered.append(f"[{mark.probability:.0%}]" if style else "")
    rendered.append(printable(text[position:]))
    return rendered


def print_marked(
    console: PlainConsole, texts: Iterable[tuple[str, Sequence[Mark]]], show_replaced: bool = False
) -> None:
    """Prints a legend, then each text on a line of its own after a bullet.

    Args:
      console: the console to print to.
      texts: pairs of a text and its marks.
      show_replaced: whether the marks tell which words were replaced.
    """
    colors = console.color_system is not None and console.is_terminal and not console.no_color
    bounds = [f"{bound:.0%}" for bound, _ in reversed(_SHADES)]
    if colors:
        legend = f"shaded: probability of being replaced at least {', '.join(bounds)}"
        replaced = "underlined: replaced by the generator"
    else:
        legend = f"[n%]: probability of being replaced, shown from {bounds[0]}"
        replaced = "*starred*: replaced by the generator"
    console.print(f"{replaced} · {legend}" if show_replaced else legend, style="dim")
    for text, marks in texts:
        line = Text("• ")
        line.append_text(render_marked(text, marks, colors))
        console.print(line)
