"""Step times in the most naive way: loops over ranks and pairs of ranks. Nothing of balancer.simulate."""


def rank_seconds(lengths, ranks, num_ranks, constant, a, b, flops_per_s):
    seconds = [0.0] * num_ranks
    for length, rank in zip(lengths, ranks, strict=True):
        if length:
            seconds[rank] += (constant + a * length + b * length * length) / flops_per_s
    return seconds


def slot_seconds(lengths, ranks, slots, num_ranks, num_slots, coefficients, flops_per_s):
    """Seconds of every micro-batch, a row a rank."""
    constant, a, b = coefficients
    seconds = [[0.0] * num_slots for _ in range(num_ranks)]
    for length, rank, slot in zip(lengths, ranks, slots, strict=True):
        if length:
            seconds[rank][slot] += (constant + a * length + b * length * length) / flops_per_s
    return seconds


def time_of_slots(seconds, sync, stages):
    """Of a step whose ranks meet in every slot, once, or along a pipeline."""
    if sync == "micro_batch":
        return sum(max(row[slot] for row in seconds) for slot in range(len(seconds[0])))
    if sync == "step":
        return max(sum(row) for row in seconds)
    return (len(seconds[0]) + stages - 1) * max(max(row) for row in seconds)


def exchange_seconds(source, target, volumes, node_of_rank, intra, inter):
    """The largest of any rank; `intra` and `inter` are (latency, bytes a second)."""
    num_ranks = len(node_of_rank)
    sent = [[0] * num_ranks for _ in range(num_ranks)]
    for here, there, volume in zip(source, target, volumes, strict=True):
        if here != there:
            sent[here][there] += volume
    longest = 0.0
    for rank in range(num_ranks):
        total = 0.0
        for same_node, (latency, bandwidth) in ((True, intra), (False, inter)):
            out = back = 0.0
            for other in range(num_ranks):
                if (node_of_rank[rank] == node_of_rank[other]) is same_node:
                    out += latency + sent[rank][other] / bandwidth if sent[rank][other] else 0.0
                    back += latency + sent[other][rank] / bandwidth if sent[other][rank] else 0.0
            total += max(out, back)
        longest = max(longest, total)
    return longest
