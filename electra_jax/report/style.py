"""The style sheet of the page: light and dark mode, desktop and phone, screen and print."""

# The colors of the lines also differ in lightness, for color-blind readers. Each has a contrast of at least 3:1 with
# the background.
CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f8; --card: #ffffff; --ink: #1c2127; --soft: #5a6470; --rule: #dfe3e8; --grid: #e9ecf0;
  --accent: #0a66b0; --mark: 226 88 24; --strength: 62%;
  --c0: #0a66b0; --c1: #d95f02; --c2: #701000; --c3: #3090f0; --c4: #303070; --c5: #a04040;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #111418; --card: #191c21; --ink: #e7eaee; --soft: #9aa4b0; --rule: #2e343c; --grid: #262b32;
    --accent: #6cb4f5; --mark: 240 104 48; --strength: 58%;
    --c0: #4f9fec; --c1: #ff8f4f; --c2: #90f0f0; --c3: #ece24a; --c4: #e04020; --c5: #b06090;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 72rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", Arial, sans-serif;
  -webkit-text-size-adjust: 100%; text-size-adjust: 100%; overflow-wrap: anywhere;
}
h1 { font-size: 1.75rem; line-height: 1.2; letter-spacing: -.015em; font-weight: 650; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; line-height: 1.3; letter-spacing: -.01em; font-weight: 650; margin: 3rem 0 .9rem; }
h3 { font-size: .8125rem; font-weight: 600; color: var(--soft); letter-spacing: .04em; text-transform: uppercase;
  margin: 1.75rem 0 .6rem; }
p { margin: .4rem 0; max-width: 46rem; }
.lead, .note, caption, small { color: var(--soft); }
.note, caption { font-size: .875rem; }
small { font-size: .8125em; white-space: nowrap; }
td small { white-space: normal; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); }
.c3 { --c: var(--c3); } .c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .muted { --c: var(--soft); }

.card, figure { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .9375rem; font-variant-numeric: tabular-nums; width: 100%; }
caption { caption-side: bottom; text-align: left; padding: .6rem 1rem .8rem; border-top: 1px solid var(--rule); }
caption span { position: sticky; left: 1rem; display: inline-block; max-width: min(46rem, calc(100vw - 4rem)); }
th, td { text-align: left; padding: .34rem 1rem; vertical-align: baseline; overflow-wrap: normal; }
td { min-width: 7.5rem; }
thead th { padding-top: .8rem; padding-bottom: .6rem; border-bottom: 1px solid var(--rule); font-weight: 600; }
tbody th { font-weight: 400; color: var(--soft); }
tbody th[scope=row], thead td { position: sticky; left: 0; background: var(--card); width: 13rem; min-width: 9rem; }
tbody th[scope=rowgroup] { font-size: .8125rem; font-weight: 600; letter-spacing: .04em; text-transform: uppercase;
  padding-top: 1rem; }
tbody + tbody th[scope=rowgroup] { border-top: 1px solid var(--rule); }
.settings tbody th { overflow-wrap: anywhere; }
.settings tbody th, .settings td { font: .875rem ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
code { font: .875em ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }

.key::before { content: ""; display: inline-block; width: .3rem; height: .85em; border-radius: 2px;
  margin-right: .45rem; background: var(--c); vertical-align: -.06em; }
.bar { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: center; margin: .9rem 0 1rem;
  font-size: .9375rem; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 0; padding: 0; list-style: none; }
.switch { display: inline-flex; border: 1px solid var(--rule); border-radius: 8px; padding: 2px;
  background: var(--card); }
.switch label { padding: .25rem .8rem; border-radius: 6px; cursor: pointer; color: var(--soft); }
.pick { position: fixed; top: 0; left: 0; opacity: 0; pointer-events: none; }

.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .9rem 1rem .7rem; min-width: 0; }
figcaption { font-weight: 600; font-size: .9375rem; margin-bottom: .5rem; }
figcaption small { font-weight: 400; margin-left: .5rem; white-space: normal; }
.chart { display: block; width: 100%; height: auto; overflow: visible; font-size: 12px;
  font-variant-numeric: tabular-nums; }
.chart text { fill: var(--soft); }
.chart .label { fill: var(--ink); font-weight: 600; paint-order: stroke; stroke: var(--card); stroke-width: 3px; }
.chart path { fill: none; }
.chart .gridline { stroke: var(--grid); }
.chart .axis { stroke: var(--soft); stroke-opacity: .55; }
.chart .line { stroke: var(--c); stroke-width: 1.75px; stroke-linejoin: round; stroke-linecap: round;
  vector-effect: non-scaling-stroke; }
.chart .dashed { stroke-width: 1.25px; stroke-dasharray: 5 4; stroke-linecap: butt; stroke-opacity: .8; }
.chart .band { fill: var(--c); fill-opacity: .16; }
.chart .bar-of { stroke: var(--c); stroke-width: 3px; stroke-linecap: round; }
.chart circle { fill: var(--c); }
.chart .end { stroke: var(--card); stroke-width: 1px; }

.sample { padding: .9rem 1.1rem 1rem; margin-bottom: 1rem; }
.sample h3 { margin: 0 0 .5rem; text-transform: none; letter-spacing: 0; font-size: .9375rem; color: var(--ink); }
.sample p { max-width: none; line-height: 1.85; margin: .35rem 0; }
.sample span, .sample u { padding: .1em .16em; border-radius: 4px;
  background: rgb(var(--mark) / calc(var(--p, 0) * var(--strength))); }
.sample u { text-decoration-thickness: 2px; text-underline-offset: 3px; }
.ramp { display: inline-block; width: 7rem; height: .8em; border-radius: 4px; vertical-align: -.06em; margin: 0 .35rem;
  background: linear-gradient(90deg, rgb(var(--mark) / 0), rgb(var(--mark) / var(--strength)));
  border: 1px solid var(--rule); }
footer { margin-top: 3rem; color: var(--soft); font-size: .8125rem; }

@media (max-width: 700px) {
  body { padding: 1.5rem .75rem 3rem; }
  h1 { font-size: 1.4rem; }
  h2 { margin-top: 2.25rem; }
  .grid { grid-template-columns: minmax(0, 1fr); }
  figure { padding: .75rem .6rem .5rem; }
  .chart { font-size: 14px; }
  th, td { padding: .34rem .7rem; }
  tbody th[scope=row], thead td { width: 8rem; min-width: 8rem; max-width: 8rem; }
  caption { padding: .6rem .7rem .7rem; }
  caption span { left: .7rem; }
  small { white-space: normal; }
}
@media print { body { background: none; } .switch { display: none; } figure, .sample { break-inside: avoid; } }
"""


def switch(names: list[str]) -> str:
    """Returns CSS rules that show only the charts with the selected one of the classes `names`, initially the first.

    Each class has a radio button whose id is its name.
    """
    rules = [f".{name} {{ display: none; }}" for name in names[1:]]
    for name in names:
        # `~` selects the later siblings of the button, so that no script is needed.
        rules += [
            f"#{name}:checked ~ .all .{other} {{ display: {'block' if other == name else 'none'}; }}" for other in names
        ]
        rules.append(f"#{name}:checked ~ .bar label[for={name}] {{ background: var(--accent); color: var(--card); }}")
        rules.append(f"#{name}:focus-visible ~ .bar label[for={name}] {{ outline: 2px solid; outline-offset: 2px; }}")
    return "\n".join(rules)
