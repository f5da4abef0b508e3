"""Builds the report page: one self-contained HTML file that loads nothing from the network."""

from collections.abc import Sequence
from html import escape
from typing import Any

from electra_jax.loading.samples import SampledWord
from electra_jax.report import elements, metric_charts, score_charts, style, summary
from electra_jax.report.elements import Key
from electra_jax.report.samples import Samples
from electra_jax.report.task_scores import TaskScores
from electra_jax.runtime.run_log import RunLog, differing_settings

_FAINT = 0.03  # words of lower probability are not shaded
_DETECTED = 0.5


def make_page(runs: Sequence[RunLog], samples: Sequence[Samples], tasks: Sequence[TaskScores]) -> str:
    """Makes the page, as HTML.

    Args:
      runs: the runs to compare.
      samples: the sample sentences of each run; empty to leave them out.
      tasks: task scores against FLOPs; empty to leave them out.
    """
    keys, axes = elements.keys([run.name for run in runs]), metric_charts.x_axes(runs)
    parts = [_head(runs, [x.css for x in axes]), _summary(runs, keys)]
    if len(runs) > 1:
        parts.append(_differences(runs, keys))
    parts.append(metric_charts.make_section(runs, keys, axes))
    if tasks:
        parts.append(score_charts.make_section(tasks, runs))
    if samples:
        parts.append(_samples(samples, keys))
    return "\n".join([*parts, _FOOT])


def _head(runs: Sequence[RunLog], chart_classes: list[str]) -> str:
    title = f"{len(runs)} pre-training runs" if len(runs) > 1 else f"Pre-training run {runs[0].name}"
    objectives = list(dict.fromkeys(run.objective for run in runs))
    unfinished = [run.name for run in runs if run.last["step"] < run.steps]
    lead = f"Objective{'s' if len(objectives) > 1 else ''}: {', '.join(objectives)}. "
    lead += f"Not finished: {', '.join(unfinished)}." if unfinished else "Finished."
    # The content security policy keeps the page's promise: no script, and nothing from the network.
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{style.CSS}{style.switch(chart_classes)}
</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>"""


_FOOT = """\
</main>
<footer>Written by <code>electra-jax report</code> from the work directories of the runs. Hover over a shortened
number, a point of a line or a word of a sentence for details.</footer>
</body>
</html>
"""


def _summary(runs: Sequence[RunLog], keys: Sequence[Key]) -> str:
    bodies = [
        elements.body([(name, [elements.cell(*cell) for cell in cells]) for name, cells in group.rows], group.heading)
        for group in summary.make_groups(runs)
    ]
    caption = "Losses are in nats per token. Small print next to them: baselines that ignore the context."
    return f"<section><h2>Summary</h2>{elements.table(keys, bodies, caption)}</section>"


def _differences(runs: Sequence[RunLog], keys: Sequence[Key]) -> str:
    differences = differing_settings(runs)
    if not differences:
        content = '<p class="note">None: these runs have the same settings.</p>'
    else:
        rows = [(name, [_setting(value) for value in values]) for name, values in differences]
        caption = f"All other settings are the same. {summary.NONE}: the run has no such setting."
        content = elements.table(keys, [elements.body(rows)], caption)
    return f'<section class="settings"><h2>Settings that differ</h2>{content}</section>'


def _setting(value: Any) -> str:
    # `repr` shows an empty text as two quotes.
    exact = summary.NONE if value is None else str(value) or repr(value)
    return elements.cell(f"{value:.4g}" if isinstance(value, float) and len(exact) > 8 else exact, exact=exact)


def _samples(samples: Sequence[Samples], keys: Sequence[Key]) -> str:
    cards = []
    for key, each in zip(keys, samples, strict=True):
        step = f" <small>checkpoint of step {each.step:,}</small>" if each.step is not None else ""
        content = [f"<p>{' '.join(map(_word, sentence))}</p>" for sentence in each.sentences]
        notes = [_count_detected(each.sentences)] if each.sentences else []
        if each.note:
            notes.append(f"The shade of a token shows {each.note}." if each.sentences else each.note)
        content += [f'<p class="note">{escape(note)}</p>' for note in notes]
        cards.append(f'<div class="card sample"><h3>{key.html}{step}</h3>{"".join(content)}</div>')
    return f"""\
<section>
<h2>Replaced tokens in sample sentences</h2>
<p class="note">Held-out sentences with tokens replaced by the generator. <u>Underlined</u>: replaced. Shaded: the
probability of being replaced that the encoder gives, from 0% <span class="ramp"></span> to 100%.</p>
{"".join(cards)}
</section>"""


def _word(word: SampledWord) -> str:
    shade = f' style="--p:{word.probability:.2f}"' if word.probability >= _FAINT else ""
    tooltip = f"{word.probability:.0%}" + (f", was: {word.original}" if word.original is not None else "")
    tag = "span" if word.original is None else "u"
    # The text of a corpus, and names of runs, may hold markup.
    return f'<{tag}{shade} title="{escape(tooltip)}">{escape(word.text)}</{tag}>'


def _count_detected(sentences: Sequence[Sequence[SampledWord]]) -> str:
    words = [word for sentence in sentences for word in sentence]
    detected = [word for word in words if word.probability > _DETECTED]
    replaced, found = (sum(word.original is not None for word in some) for some in (words, detected))
    return (
        f"Over {_DETECTED:.0%}: {found} of the {replaced} replaced words and {len(detected) - found} of the "
        f"{len(words) - replaced} others."
    )
