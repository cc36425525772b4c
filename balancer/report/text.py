"""Text from outside, such as names in a file, made safe to show: no control characters, limited length."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

_MOST = 2000


def counted(count: int, what: str) -> str:
    """Return a number with what it counts, in the singular where it is one.

    Examples
    --------
    >>> counted(1, "GPU"), counted(2048, "GPU"), counted(2, "micro-batch")
    ('1 GPU', '2,048 GPUs', '2 micro-batches')
    """
    many = "es" if what.endswith("batch") else "s"
    return f"{count:,} {what}{many if count != 1 else ''}"


def of_costs(costs: Mapping[str, str]) -> str:
    """Say what each phase is priced by; of phases with the same cost, once.

    Examples
    --------
    >>> of_costs({"vision": "linear", "audio": "linear", "llm": "quadratic:a=24576,b=1"})
    'cost: linear (vision, audio), quadratic:a=24576,b=1 (llm)'
    >>> of_costs({"all": "padded"})
    'cost: padded'
    """
    by_cost: dict[str, list[str]] = {}
    for name, cost in costs.items():
        by_cost.setdefault(cost, []).append(name)
    if len(costs) == 1:
        return f"cost: {next(iter(by_cost), '')}"
    return "cost: " + ", ".join(f"{cost} ({', '.join(names)})" for cost, names in by_cost.items())


def of_phase(name: str, sentence: str) -> str:
    """Begin a sentence with the phase that it is of, if somebody named that.

    Examples
    --------
    >>> of_phase("vision", "all lengths are 0"), of_phase("all", "all lengths are 0")
    ('vision: all lengths are 0', 'All lengths are 0')
    """
    from balancer.problem.phases import SINGLE_PHASE  # late: errors of the command line need this file alone

    return f"{sentence[:1].upper()}{sentence[1:]}" if name == SINGLE_PHASE else f"{name}: {sentence}"


def shortened(name: str, longest: int) -> str:
    """Return a name for a line or a page, without its middle if it is long: streams differ at the end."""
    return printable(name if len(name) <= longest else f"{name[: longest // 2]}…{name[-longest // 2 :]}")


def folded(command: str, width: int = 58) -> str:
    r"""Break a shell command before its options, so that a narrow page does not break it elsewhere.

    Examples
    --------
    >>> print(folded("balancer plan 'my log.csv' --ranks 64 --batch-per-rank 16", 40))
    balancer plan 'my log.csv' --ranks 64 \
        --batch-per-rank 16
    """
    parts: list[str] = []  # an option with its values
    for word in map(shlex.quote, shlex.split(command)):
        if word.startswith("-") or not parts:
            parts.append(word)
        else:
            parts[-1] += f" {word}"
    lines = parts[:1]
    for part in parts[1:]:
        # 3: the blank before this part, and the blank and the backslash behind it.
        if len(lines[-1]) + len(part) > width - 3:
            lines.append(f"    {part}")
        else:
            lines[-1] += f" {part}"
    return " \\\n".join(lines)


def printable(text: str, most: int = _MOST) -> str:
    r"""Return a text with escapes instead of control characters, cut if it is very long.

    Examples
    --------
    >>> printable("phase \x1b[31mred")
    'phase \\x1b[31mred'
    """
    shown = text if len(text) <= most else f"{text[:most]} ... ({len(text):,} characters)"
    # Marks that turn the direction of text are not printable either: they could make a line say something else.
    return "".join(c if c.isprintable() or c in "\n\t " else ascii(c)[1:-1] for c in shown)


def make_safe(console: Any) -> Any:
    """Let a rich console show everything as :func:`printable` has it, and return it."""
    console.push_render_hook(_Hook())
    return console


class _Hook:
    """A render hook of rich."""

    def process_renderables(self, renderables: Iterable[Any]) -> list[Any]:
        return [_Printable(renderable) for renderable in renderables]


class _Printable:
    """What rich renders, its text made printable."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __rich_console__(self, console: Any, options: Any) -> Iterable[Any]:
        from rich.segment import Segment

        for segment in console.render(self._inner, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
