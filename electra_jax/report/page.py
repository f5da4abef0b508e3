"""The page: what was found of the runs, as HTML that needs nothing but itself."""

from collections.abc import Sequence
from html import escape
from typing import Any

from electra_jax.loading.samples import SampledWord
from electra_jax.report import elements, figures, scores, style, summary
from electra_jax.report.curves import Task
from electra_jax.report.elements import Key
from electra_jax.report.samples import Samples
from electra_jax.runtime.run_log import Run, differences

_FAINT = 0.03  # a probability that no shade shows
_SUSPECTED = 0.5


def page(runs: Sequence[Run], samples: Sequence[Samples], tasks: Sequence[Task]) -> str:
    """The whole page.

    Args:
      runs: what it is about.
      samples: what each run says of sentences; empty to leave them out.
      tasks: scores against FLOPs; empty to leave them out.
    """
    keys, against = elements.keys([run.name for run in runs]), figures.axes(runs)
    parts = [_head(runs, [x.css for x in against]), _summary(runs, keys)]
    if len(runs) > 1:
        parts.append(_differences(runs, keys))
    parts.append(figures.section(runs, keys, against))
    if tasks:
        parts.append(scores.section(tasks, runs))
    if samples:
        parts.append(_samples(samples, keys))
    return "\n".join([*parts, _FOOT])


def _head(runs: Sequence[Run], switched: list[str]) -> str:
    title = f"{len(runs)} pre-training runs" if len(runs) > 1 else f"Pre-training run {runs[0].name}"
    systems = list(dict.fromkeys(run.system for run in runs))
    going = [run.name for run in runs if run.last["step"] < run.settings["steps"]]
    lead = f"{'Systems' if len(systems) > 1 else 'ObjectiveSpec'}: {', '.join(systems)}. "
    lead += f"Not finished: {', '.join(going)}." if going else "Finished."
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{style.CSS}{style.switch(switched)}
</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>"""


_FOOT = """\
</main>
<footer>Written by <code>python -m electra_jax.report</code> from what the runs left in their work directories. A
pointer that pretrained_generator on a shortened number, on a point of a line or on a word of a sentence shows more.</footer>
</body>
</html>
"""


def _summary(runs: Sequence[Run], keys: Sequence[Key]) -> str:
    bodies = [
        elements.body([(what, [elements.cell(*each) for each in cells]) for what, cells in group.rows], group.heading)
        for group in summary.groups(runs)
    ]
    caption = "Losses are in nats a token. In small letters: the number reached without reading the context."
    return f"<section><h2>Summary</h2>{elements.table(keys, bodies, caption)}</section>"


def _differences(runs: Sequence[Run], keys: Sequence[Key]) -> str:
    found = differences(runs)
    if not found:
        said = '<p class="note">None: all settings of these runs are the same.</p>'
    else:
        rows = [(name, [_setting(value) for value in values]) for name, values in found]
        caption = f"What is not listed is the same in all. {summary.NONE}: the run has no such setting."
        said = elements.table(keys, [elements.body(rows)], caption)
    return f'<section class="settings"><h2>Settings that differ</h2>{said}</section>'


def _setting(value: Any) -> str:
    """A cell of it."""
    exact = summary.NONE if value is None else str(value) or repr(value)
    return elements.cell(f"{value:.4g}" if isinstance(value, float) and len(exact) > 8 else exact, exact=exact)


def _samples(samples: Sequence[Samples], keys: Sequence[Key]) -> str:
    parts = []
    for key, found in zip(keys, samples, strict=True):
        step = f" <small>checkpoint of step {found.step:,}</small>" if found.step is not None else ""
        said = [f"<p>{' '.join(map(_word, sentence))}</p>" for sentence in found.sentences]
        notes = [_caught(found.sentences)] if found.sentences else []
        if found.note:
            notes.append(f"Of every token this encoder says {found.note}." if found.sentences else found.note)
        said += [f'<p class="note">{escape(note)}</p>' for note in notes]
        parts.append(f'<div class="card said"><h3>{key.html}{step}</h3>{"".join(said)}</div>')
    return f"""\
<section>
<h2>Which words do not belong?</h2>
<p class="note">Held-out sentences with fakes in them. <u>Underlined</u>: replaced by the generator. Shaded: replaced,
as the encoder thinks, 0% <span class="ramp"></span> 100%.</p>
{"".join(parts)}
</section>"""


def _word(word: SampledWord) -> str:
    shade = f' style="--p:{word.probability:.2f}"' if word.probability >= _FAINT else ""
    says = f"{word.probability:.0%}" + (f", was: {word.original}" if word.original is not None else "")
    tag = "span" if word.original is None else "u"
    return f'<{tag}{shade} title="{escape(says)}">{escape(word.text)}</{tag}>'


def _caught(sentences: Sequence[Sequence[SampledWord]]) -> str:
    words = [word for sentence in sentences for word in sentence]
    suspected = [word for word in words if word.probability > _SUSPECTED]
    fakes, caught = (sum(word.original is not None for word in some) for some in (words, suspected))
    return (
        f"Over {_SUSPECTED:.0%}: {caught} of the {fakes} words that were replaced, and {len(suspected) - caught} of "
        f"the {len(words) - fakes} others."
    )
