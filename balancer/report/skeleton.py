"""Parts of pages: a document without scripts that loads nothing, sections, cards, charts, tables, names."""

from collections.abc import Iterable, Sequence

from balancer._version import __version__
from balancer.io._atomic import reported, write_whole
from balancer.report.canvas import phase_variable
from balancer.report.style import STYLE
from balancer.report.text import escaped

__all__ = ["card", "chart", "document", "facts", "keys", "named", "section", "table", "write_document"]

LONGEST_NAME = 120
"""Characters of a name that are shown."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def document(source: str, what: str, about: str, cards: Iterable[str], sections: Iterable[str], footer: str) -> str:
    """Return a page as HTML.

    Parameters
    ----------
    source : str
        What the page is about, such as a file's path: its heading, in a user's words.
    what : str
        Stands behind `source` in the title.
    about, footer : str
        HTML of a line below the heading, and at the end.
    cards, sections : iterable of str
        HTML, as :func:`card` and :func:`section` return it.
    """
    header = f"<header><h1>{named(source)}</h1><p>{about}</p></header>"
    body = f'{header}<section class="cards">{"".join(cards)}</section>{"".join(sections)}'
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_plain(source)}: {what}</title><style>{STYLE}</style></head>\n"
        f"<body><main>{body}</main><footer>seqbalancer {escaped(__version__)}. {footer}</footer></body></html>\n"
    )


def write_document(path: str, text: str) -> None:
    """Write a page to a file, which is there as a whole or not at all.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    with reported(path, "write the page"):
        write_whole(path, text.encode("utf-8", errors="backslashreplace"))  # file names need not be text


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


def section(title: str, words: str, charts: Iterable[str] = (), before: str = "", after: str = "") -> str:
    """Return a part of the page: words of HTML, charts side by side, and HTML before and after those."""
    drawn = "".join(charts)
    side_by_side = f'<div class="charts">{drawn}</div>' if drawn else ""
    return f"<section><h2>{title}</h2><p>{words}</p>{before}{side_by_side}{after}</section>"


def chart(key: str, caption: str, description: str, svg: str, note: str = "", wide: bool = False) -> str:
    """Return one figure; the description, which may hold names, is for screen readers."""
    size = ' class="broad"' if wide else ""
    below = f'<p class="note">{note}</p>' if note else ""
    head = f"<figcaption>{caption}</figcaption>" if caption else ""
    return (
        f'<figure id="{key}"{size}>{head}<div role="img" aria-label="{_plain(description)}">{svg}</div>{below}</figure>'
    )


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
    head = "".join(f"<th{mark}>{title}</th>" for mark, (title, _) in zip(marks, columns, strict=True))
    bodies = []
    for heading, rows in groups:
        body = f'<tr><th colspan={len(columns)} scope="rowgroup">{heading}</th></tr>' if heading else ""
        for row in rows:
            body += f"<tr>{''.join(f'<td{mark}>{cell}</td>' for mark, cell in zip(marks, row, strict=True))}</tr>"
        bodies.append(f"<tbody>{body}</tbody>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>{"".join(bodies)}</table></div>'
