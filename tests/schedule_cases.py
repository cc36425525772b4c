"""Samples for both checkers of micro-batches, of schedules and of shares, and what neither lets pass."""

COSTS, TOKENS = [90, 50, 40, 40, 30, 30, 20, 20, 10], [9, 5, 4, 4, 3, 3, 2, 2, 30]
OTHER_RULES = [
    ({"num_slots": 7}, "num_slots = 7 was asked for"),
    ({"min_slots": 7}, "below min_slots = 7"),
    ({"slots_multiple_of": 7}, "no multiple of slots_multiple_of = 7"),
    ({"over_long": "error"}, "sample 8 is over the cap, which over_long refuses"),
    ({"num_ranks": 3}, r"must be int64\[3, "),
]


def changed(array, index, value):
    copy = array.copy()
    copy[index] = value
    return copy
