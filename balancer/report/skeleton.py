"""Parts of pages: a document without scripts that loads nothing, sections, cards, charts, tables, names."""

import re
from collections.abc import Iterable, Sequence

from balancer._version import __version__
from balancer.io._atomic import write_whole
from balancer.report.canvas import phase_variable
from balancer.report.style import STYLE
from balancer.report.text import escaped

__all__ = ["card", "chart", "document", "facts", "keys", "named", "section", "table", "write_document"]

LONGEST_NAME = 120
"""Characters of a name that are shown."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def document(
    source: str, what: str, lead: str, about: str, cards: Iterable[str], sections: Iterable[str], footer: str
) -> str:
    """Return a page as HTML. All is HTML but `source`, which is in a user's words: the heading, such as a file's path.

    `what` stands behind it in the title, `lead` is the one sentence that a reader shall take away, and `about` a line
    below it. Cards and sections are as :func:`card` and :func:`section` return them.
    """
    header = f'<header><h1>{named(source)}</h1><p class="lead">{lead}</p><p>{about}</p></header>'
    short = f'<section class="cards" aria-label="In short">{"".join(cards)}</section>'
    body = f'{header}<main id="main">{short}<div class="parts">{"".join(sections)}</div></main>'
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_plain(source)}: {what}</title><style>{STYLE}</style></head>\n"
        f'<body><a class="skip" href="#main">To the numbers</a>{body}'
        f"<footer>seqbalancer {escaped(__version__)}. {footer}</footer></body></html>\n"
    )


def write_document(path: str, text: str) -> None:
    """Write a page to a file, which is there as a whole or not at all."""
    write_whole(path, text.encode("utf-8", errors="backslashreplace"), "write the page")  # file names need not be text


def named(name: str, longest: int = LONGEST_NAME) -> str:
    """Return a name that a user chose as HTML text whose direction (left or right) does not affect its neighbours."""
    return f"<bdi>{_plain(name, longest)}</bdi>"


def _plain(name: str, longest: int = LONGEST_NAME) -> str:
    """Leave out the middle of a very long name: streams differ at the end."""
    short = name if len(name) <= longest else f"{name[: longest // 2]}…{name[-longest // 2 :]}"
    return escaped(short)


def card(title: str, big: str, words: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a headline: one number large, what it is, and others by name; all of it HTML."""
    listed = "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in rows)
    return f'<article class="card"><h2>{title}</h2><p class="big">{big}</p><p>{words}</p><dl>{listed}</dl></article>'


def section(
    title: str, words: str, charts: Iterable[str] = (), before: str = "", after: str = "", tall: bool = False
) -> str:
    """Return a part of the page: words of HTML, charts side by side, and HTML before and after those.

    With several charts, or a broad one, it takes the whole width of a screen; others stand two and two, and two beside
    a tall one.
    """
    drawn = list(charts)
    side_by_side = f'<div class="charts">{"".join(drawn)}</div>' if drawn else ""
    full = len(drawn) > 1 or any('class="broad"' in one for one in drawn)
    half = "" if full else ' class="half tall"' if tall else ' class="half"'
    key = re.sub(r"\W+", "-", title.lower())
    head = f'<section{half} aria-labelledby="{key}"><h2 id="{key}">{title}</h2><p>{words}</p>'
    return f"{head}{before}{side_by_side}{after}</section>"


def chart(key: str, caption: str, description: str, svg: str, numbers: str, note: str = "", wide: bool = False) -> str:
    """Return one figure with its numbers, a table of HTML; the description, which may hold names, is read aloud."""
    size = ' class="broad"' if wide else ""
    below = f'<p class="note">{note}</p>' if note else ""
    head = f"<figcaption>{caption}</figcaption>" if caption else ""
    drawn = f'<div role="img" aria-label="{escaped(description)}">{svg}</div>'
    behind = f"<details><summary>The numbers</summary>{numbers}</details>"
    return f'<figure id="{key}"{size}>{head}{drawn}{below}{behind}</figure>'


def keys(names: Iterable[str]) -> str:
    """Return which colour stands for which phase."""
    items = "".join(
        f'<li><span class="key" style="background:var({phase_variable(i)})"></span>{named(name)}</li>'
        for i, name in enumerate(names)
    )
    return f'<ul class="keys">{items}</ul>'


def facts(groups: Iterable[tuple[str, Iterable[tuple[str, str]]]]) -> str:
    """Return facts by name, in groups under headings; all of it HTML."""
    bodies = []
    for heading, pairs in groups:
        rows = "".join(f"<tr><th scope=row>{key}</th><td>{value}</td></tr>" for key, value in pairs)
        bodies.append(f'<tbody><tr><th colspan=2 scope="rowgroup">{heading}</th></tr>{rows}</tbody>')
    return f'<table class="facts">{"".join(bodies)}</table>'


def table(columns: Sequence[tuple[str, bool]], groups: Iterable[tuple[str, Iterable[Sequence[str]]]]) -> str:
    """Return a table of HTML cells, its rows in groups under headings of HTML; an empty one is left out.

    Each column has a title, and whether it holds numbers.
    """
    marks = [" class=num" if number else "" for _, number in columns]
    head = "".join(f"<th{mark} scope=col>{title}</th>" for mark, (title, _) in zip(marks, columns, strict=True))
    bodies = []
    for heading, rows in groups:
        body = f'<tr><th colspan={len(columns)} scope="rowgroup">{heading}</th></tr>' if heading else ""
        for row in rows:
            body += f"<tr>{''.join(f'<td{mark}>{cell}</td>' for mark, cell in zip(marks, row, strict=True))}</tr>"
        bodies.append(f"<tbody>{body}</tbody>")
    scrolls = 'class="wide" tabindex="0" role="group" aria-label="Table"'
    return f"<div {scrolls}><table><thead><tr>{head}</tr></thead>{''.join(bodies)}</table></div>"
