"""How the page looks: two sets of colours, and a style sheet."""

__all__ = ["DARK", "LIGHT", "STYLE"]

LIGHT = {
    "page": "#ffffff", "card": "#f4f5f7", "ink": "#1a1a1a", "faint": "#666666", "line": "#d8d8d8", "before": "#b84d00",
    "after": "#0069a6", "phase-0": "#0072b2", "phase-1": "#e69f00", "phase-2": "#007f5c", "phase-3": "#cc79a7",
    "phase-4": "#56b4e9", "phase-5": "#a6761d",
}  # fmt: skip
"""Colours by name; after Okabe and Ito (2008), whose colours colour-blind readers can tell apart."""
DARK = {
    "page": "#15171a", "card": "#202328", "ink": "#ececec", "faint": "#a6a6a6", "line": "#3a3d42", "before": "#ff9a4d",
    "after": "#6cc0f5", "phase-0": "#4da3dd", "phase-1": "#f0b429", "phase-2": "#2fc299", "phase-3": "#e39ac2",
    "phase-4": "#8fd0f5", "phase-5": "#cf9f4a",
}  # fmt: skip
"""The same for dark screens."""


def _variables(colors: dict[str, str]) -> str:
    return " ".join(f"--{name}: {color};" for name, color in colors.items())


STYLE = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
@media print {{ :root {{ color-scheme: light; {_variables(LIGHT | {"card": LIGHT["page"], "ink": "#000000"})} }} }}
"""
STYLE += """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
header, main, footer { max-width: 100rem; margin: 0 auto; padding: 0 1rem; }
.lead { font-size: 1.25rem; line-height: 1.4; }
.skip { position: absolute; left: -99rem; padding: .5rem 1rem; background: var(--page); color: var(--ink); }
.skip:focus { left: 0; top: 0; }
:focus-visible { outline: 3px solid var(--after); outline-offset: 2px; }
.parts { display: grid; gap: 0 2rem; grid-template-columns: minmax(0, 1fr); }
@media (min-width: 64rem) { .parts { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .parts > section { grid-column: 1 / -1; } .parts > section.half { grid-column: auto; }
  .parts > section.tall { grid-row: span 2; } }
h1 { font-size: 1.5rem; margin: .5rem 0 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 0; overflow-wrap: anywhere; }
header p, section > p { margin: .25rem 0 .75rem; max-width: 50rem; }
header .lead { max-width: 60rem; }
footer, .note { color: var(--faint); }
.note { margin: .25rem .5rem; font-size: .85rem; }
.cards, .charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 16rem), 1fr)); }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.card, figure { background: var(--card); border-radius: .5rem; padding: .75rem; margin: 0; min-width: 0; }
.cards { margin-top: 1rem; }
.card { max-width: 46rem; }
.card h2 { margin: 0; font-size: 1rem; }
.card p { margin: 0; }
.big { font-size: 1.6rem; font-weight: 600; }
.before { color: var(--before); white-space: nowrap; }
.after { color: var(--after); white-space: nowrap; }
dl { margin: .5rem 0 0; font-size: .9rem; }
dl div { display: flex; justify-content: space-between; gap: .75rem; }
dt { color: var(--ink); overflow-wrap: anywhere; }
dd { margin: 0; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
figcaption { font-weight: 600; overflow-wrap: anywhere; }
figure { padding: .5rem; }
details { margin: .25rem .5rem; font-size: .9rem; } summary { cursor: pointer; color: var(--faint); }
details .wide { max-height: 24rem; overflow: auto; }
figure.broad { max-width: none; grid-column: 1 / -1; }
figure.broad > div { overflow-x: auto; }
figure.broad svg { min-width: 44rem; }
figure svg { display: block; width: 100%; height: auto; }
.keys { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: 0 0 .5rem; }
.keys li { overflow-wrap: anywhere; }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: .15em;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; width: 100%; max-width: 52rem; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: bottom; }
.facts th, .facts td { vertical-align: top; overflow-wrap: anywhere; }
.facts th[scope=row] { font-weight: normal; width: 13rem; overflow-wrap: normal; }
bdi { overflow-wrap: anywhere; }
tbody th[scope=rowgroup] { padding-top: .9rem; }
.num { text-align: right; font-variant-numeric: tabular-nums; } td.num { white-space: nowrap; }
@media (max-width: 40rem) { table { font-size: .8rem; } th, td { padding: .2rem .25rem; }
  .facts th[scope=row] { width: 8rem; } }
footer { font-size: .85rem; }
@media print {
  body { font-size: 11pt; } figure, .card { break-inside: avoid; } h2 { break-after: avoid; }
  .cards, .charts { grid-template-columns: 1fr 1fr; } .wide { overflow: visible; }
  details { display: none; } tr { break-inside: avoid; }
  section > p, .keys, thead, th[scope=rowgroup] { break-after: avoid; break-inside: avoid; } }
"""
