"""Samples of three phases, and ways to change the rows of their plans."""

from balancer import Phase

IMAGES = [[5, 3], [], [7], [2, 2, 2], [], [9], [1], [4, 4], [], [], [6, 1], [8], [3]]
TEXT = [4, 9, 2, 7, 1, 3, 8, 5, 6, 2, 2, 9, 4]
AUDIO = [0, 5, 0, 0, 8, 0, 2, 0, 0, 0, 6, 0, 1]
PHASES = (
    Phase("vision", "images", bytes_in=3, bytes_out=2),
    Phase("audio", "audio", cost="quadratic:a=2,b=1"),
    Phase("llm", "text+audio", own="text"),
)


def of(rows, phase, step=0):
    return [row for row in rows if row["phase"] == phase and row["step"] == step]


def drop(phase, step=0, count=1):
    def change(rows):
        for row in of(rows, phase, step)[:count]:
            rows.remove(row)

    return change


def update(phase, which=0, **values):
    return lambda rows: of(rows, phase)[which].update(values)


def swap_ranks(rows):
    rows = of(rows, "vision")
    other = next(row for row in rows if row["rank"] != rows[0]["rank"])
    for key in ("rank", "position"):
        rows[0][key], other[key] = other[key], rows[0][key]
