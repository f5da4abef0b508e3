import io

from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.marked_text import Mark, print_marked, render_marked

TEXT = "the  Dog sat down."
MARKS = [Mark(0, 3, 0.01), Mark(5, 8, 0.2), Mark(9, 12, 0.4, True), Mark(13, 18, 0.9, True)]


def test_without_colors_words_carry_their_probability():
    assert render_marked(TEXT, MARKS, colors=False).plain == "the  Dog[20%] *sat*[40%] *down.*[90%]"


def test_with_colors_the_text_is_unchanged_and_shades_deepen():
    text = render_marked(TEXT, MARKS, colors=True)
    assert text.plain == TEXT
    styles = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert not styles.get("the", "").strip()
    assert styles["Dog"] == "black on light_goldenrod1"
    assert styles["sat"] == "black on orange1 underline"
    assert styles["down."] == "bold white on red3 underline"


def test_the_legend_names_the_thresholds_and_each_text_has_a_line():
    out = io.StringIO()
    print_marked(PlainConsole(file=out, width=200), [(TEXT, MARKS), ("", [])])
    legend, first, empty = out.getvalue().splitlines()
    assert legend == "[n%]: probability of being replaced, shown from 15%"
    assert first == "• the  Dog[20%] *sat*[40%] *down.*[90%]"
    assert empty.strip() == "•"
    out = io.StringIO()
    console = PlainConsole(file=out, width=200, force_terminal=True, color_system="truecolor")
    print_marked(console, [], show_replaced=True)
    assert "underlined: replaced by the generator" in out.getvalue()
    assert "at least 15%, 30%, 50%" in out.getvalue()
