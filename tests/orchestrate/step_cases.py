"""Multimodal batches for hypothesis to vary, and what must arrive where in the most naive way."""

import itertools
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from balancer import Phase, Ragged, Topology


@dataclass
class Case:
    """Arguments of `orchestrate`, and the items of each encoder as lists."""

    batch: dict
    phases: list
    topology: Topology
    home_rank: list
    encoders: dict  # name -> per sample a list of item lengths
    text: list  # of each sample


@st.composite
def cases(draw, most_samples=10, **phase_options) -> Case:
    """Encoders with one or several items a sample, then an LLM that takes all of them and text."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    ranks = sum(sizes)
    n = draw(st.integers(0, most_samples))
    counts = st.lists(st.integers(0, 30), max_size=4)
    encoders, batch, phases = {}, {}, []
    for name in draw(st.lists(st.sampled_from(["vision", "audio", "video"]), unique=True, max_size=3)):
        if draw(st.booleans()):
            lists = [[length + 1 for length in draw(counts)] for _ in range(n)]
            batch[name] = Ragged.of(lists)
            phases.append(Phase(name, f"{name}", bytes_in=2, bytes_out=3, **phase_options))
        else:
            numbers = [draw(st.integers(0, 30)) for _ in range(n)]
            lists = [[number] if number else [] for number in numbers]
            batch[name] = numbers
            phases.append(Phase(name, name, bytes_in=2, bytes_out=3, **phase_options))
        encoders[name] = lists
    text = [draw(st.integers(0, 20)) for _ in range(n)]
    batch["text"] = text
    batch["llm"] = [text[s] + sum(sum(lists[s]) for lists in encoders.values()) for s in range(n)]
    phases.append(Phase("llm", "llm", own="text"))
    home = [draw(st.integers(0, ranks - 1)) for _ in range(n)]
    return Case(batch, phases, Topology(sizes), home, encoders, text)


def all_to_all(buffers: list, sends: list, receives: list) -> list:
    """Exchange Python lists as the collective does."""
    ranks = len(buffers)
    pieces = []
    for buffer, splits in zip(buffers, sends, strict=True):
        cuts = np.concatenate(([0], np.cumsum(splits)))
        assert cuts[-1] == len(buffer)
        pieces.append([buffer[cuts[r] : cuts[r + 1]] for r in range(ranks)])
    arrivals = [[item for source in range(ranks) for item in pieces[source][rank]] for rank in range(ranks)]
    for arrived, splits in zip(arrivals, receives, strict=True):
        assert len(arrived) == sum(splits)
    return arrivals


def travel(stream, held: list) -> list:
    """Send what each rank holds, as lists in source order, through a stream's exchanges."""
    exchanges = [stream.exchange(rank) for rank in range(stream.source.num_ranks)]
    buffers = [[items[i] for i in e.send_order] for items, e in zip(held, exchanges, strict=True)]
    arrivals = all_to_all(
        buffers, [e.input_split_sizes.tolist() for e in exchanges], [e.output_split_sizes.tolist() for e in exchanges]
    )
    return [[items[i] for i in e.receive_order] for items, e in zip(arrivals, exchanges, strict=True)]


def moved(stream, held: list) -> list:
    """Send the elements that each rank holds, item after item, through a stream's exchanges."""
    rows = []
    for rank, elements in enumerate(held):
        ends = np.cumsum([0, *stream.lengths[stream.source.samples_on_rank(rank)]]).tolist()
        assert ends[-1] == len(elements)
        rows.append([elements[first:last] for first, last in itertools.pairwise(ends)])
    return [[element for row in rows for element in row] for rows in travel(stream, rows)]


def labelled(placement, labels: list) -> list:
    """What each rank holds under a placement, as labels."""
    return [[labels[i] for i in placement.samples_on_rank(rank)] for rank in range(placement.num_ranks)]
