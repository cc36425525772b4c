"""`balance`: what every plan keeps to, whatever it is asked for."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracles
import pytest
from balance_cases import COSTS, COUNTED_METHODS, naive_costs, naive_loads, naive_optimum, problems
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import balancer
import solvers
from balancer import Topology
from balancer.problem.settings import METHODS
from solvers import InfeasibleError, SolverError

ROOT = Path(__file__).resolve().parents[2]


def run_python(code, cwd=ROOT, **environment):
    """Run code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# --- invariants ------------------------------------------------------------------------------------------------------


def check_plan(plan, problem):
    lengths, num_ranks = problem["lengths"], problem["num_ranks"]
    placed = [s for rank in range(num_ranks) for s in plan.samples_on_rank(rank).tolist()]
    assert sorted(placed) == list(range(len(lengths))), "every sample exactly once"
    ranks = plan.rank_of_sample.tolist()
    loads = naive_loads(lengths, ranks, num_ranks, problem["cost"])
    assert plan.loads.tolist() == loads
    assert plan.makespan == max(loads)
    assert plan.home_loads.tolist() == naive_loads(lengths, plan.home.rank_of_sample, num_ranks, problem["cost"])
    assert 0 <= plan.lower_bound <= plan.makespan
    near = "within" if plan.gap <= 0.001 else "feasible"
    assert plan.status == ("optimal" if plan.lower_bound == plan.makespan else near)
    assert plan.lengths.tolist() == lengths
    if problem["equal_counts"]:
        counts = oracles.counts_of(ranks, num_ranks)
        assert max(counts) - min(counts) <= 1
    for rank in range(num_ranks):
        assert plan.samples_on_rank(rank).tolist() == sorted(plan.samples_on_rank(rank)), "dispatch in sample order"


@given(problems())
@settings(max_examples=examples(40))
def test_every_plan(problem):
    check_plan(balancer.balance(**problem), problem)


@given(problems(lengths=st.lists(st.integers(0, 30), max_size=7), costs=("linear", "quadratic:a=1,b=1")))
@settings(max_examples=examples(10))
def test_every_exact_plan(problem):
    problem["method"] = "exact"
    plan = balancer.balance(**problem, time_budget=5.0)
    check_plan(plan, problem)
    costs = naive_costs(problem["lengths"], problem["cost"])
    assert plan.makespan == oracles.optimal_makespan(costs, problem["num_ranks"], problem["equal_counts"])


@given(problems(lengths=st.lists(st.integers(0, 30), max_size=7)))
@settings(max_examples=examples(25))
def test_bound_optimum_makespan(problem):
    plan = balancer.balance(**problem)
    padded = problem["cost"].startswith("padded")
    best = naive_optimum(problem["lengths"], problem["num_ranks"], problem["cost"], problem["equal_counts"])
    assert plan.lower_bound <= best <= plan.makespan
    if padded:
        assert plan.makespan == best


class TensorLike:
    def __init__(self, values):
        self.array = np.array(values, dtype=np.int64)

    def __array__(self, dtype=None, copy=None):
        return self.array[:]


def not_contiguous(values):
    array = np.zeros((len(values), 2), dtype=np.int64)
    array[:, 1] = values
    return array[:, 1]


def read_only(values):
    array = np.array(values, dtype=np.int64)
    array.flags.writeable = False
    return array


FORMS = {
    "list": list,
    "tuple": tuple,
    "int32": lambda values: np.array(values, dtype=np.int32),
    "uint64": lambda values: np.array(values, dtype=np.uint64),
    "big endian": lambda values: np.array(values, dtype=">i8"),
    "float": lambda values: np.array(values, dtype=np.float64),
    "list of floats": lambda values: [float(v) for v in values],
    "tensor": TensorLike,
    "read-only": read_only,
    "not contiguous": not_contiguous,
    "reversed view": lambda values: np.array(values[::-1], dtype=np.int64)[::-1],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(problem=problems())
@settings(max_examples=examples(4))
def test_one_plan_whatever_the_lengths_come_in(form, problem):
    plan = balancer.balance(**problem)
    other = {**problem, "lengths": form(problem["lengths"])}
    if problem["home_rank"] is not None:
        other["home_rank"] = form(problem["home_rank"])
    again = balancer.balance(**other)
    assert again == plan
    assert again.digest() == plan.digest()


def several_digests():
    rng = np.random.default_rng(7)
    digests = []
    for n, num_ranks in ((0, 3), (5, 8), (150, 8), (600, 192)):
        lengths = np.minimum(rng.lognormal(6, 1.5, n).astype(np.int64), 100_000)
        for cost in COSTS:
            own = cost.startswith(("padded", "convolution"))
            for method in ("auto",) if own else COUNTED_METHODS:
                for equal_counts in (False,) if method == "karmarkar_karp" else (False, True):
                    plan = balancer.balance(lengths, num_ranks, cost=cost, method=method, equal_counts=equal_counts)
                    digests.append(plan.digest())
    return digests


def test_a_small_budget_makes_a_plan_too():
    lengths = np.random.default_rng(3).lognormal(6, 1.5, 500).astype(np.int64).tolist()
    for method in COUNTED_METHODS:
        problem = {"lengths": lengths, "num_ranks": 24, "cost": "linear", "method": method, "equal_counts": False}
        check_plan(balancer.balance(**problem, time_budget=1e-12), problem)


# --- arguments -------------------------------------------------------------------------------------------------------


def test_unknown_method_lists_the_known():
    with pytest.raises(ValueError, match=r"method must be one of auto, lpt, .*, got 'best'") as caught:
        balancer.balance([1], 1, method="best")
    for name in METHODS:
        assert name in str(caught.value)
    assert (*solvers.PARTITIONERS, "padded", "mixed") == METHODS
    with pytest.raises(ValueError, match=r"method must be one of .*, got 'nonsense'"):
        balancer.warmup(["nonsense"])


@pytest.mark.parametrize(
    ("method", "cost"),
    [("lpt", "padded"), ("padded", "linear"), ("mixed", "padded"), ("exact", "convolution:a=1,b=0,c=2,p=1")],
)
def test_method_that_does_not_take_the_cost(method, cost):
    with pytest.raises(ValueError, match=f"method '{method}'") as caught:
        balancer.balance([1], 1, method=method, cost=cost)
    assert f"'{cost}'" in str(caught.value)


# --- token caps ------------------------------------------------------------------------------------------------------


capped_problems = problems(lengths=st.lists(st.integers(0, 60), max_size=16), methods=("auto", "lpt"))


def naive_tokens(plan):
    """Elements on each rank, padding included where the cost pads."""
    cost = "padded" if plan.cost.padded else "linear"
    return naive_loads(plan.lengths.tolist(), plan.rank_of_sample.tolist(), plan.num_ranks, cost)


@given(capped_problems, st.floats(1.0, 2.0))
@settings(max_examples=examples(40))
def test_token_cap_is_kept_or_said_to_be_out_of_reach(problem, slack):
    lengths, num_ranks = problem["lengths"], problem["num_ranks"]
    cap = max(1, max(lengths, default=0), int(slack * -(-sum(lengths) // num_ranks)))
    try:
        plan = balancer.balance(**problem, max_tokens_per_rank=cap)
    except SolverError as error:
        assert f"max_tokens_per_rank = {cap}" in str(error) or "found" in str(error)  # noqa: PT017 (both are legal)
        if isinstance(error, InfeasibleError) and len(lengths) <= 7:
            optimum = (
                oracles.optimal_padded_makespan if problem["cost"].startswith("padded") else oracles.optimal_makespan
            )
            assert optimum(lengths, num_ranks, problem["equal_counts"]) > cap
        return
    check_plan(plan, problem)
    assert max(naive_tokens(plan)) <= cap


@given(capped_problems)
@settings(max_examples=examples(25))
def test_a_cap_that_the_free_plan_keeps_makes_no_plan_worse(problem):
    free = balancer.balance(**problem, placement="any")
    cap = max(1, *naive_tokens(free))
    capped = balancer.balance(**problem, placement="any", max_tokens_per_rank=cap)
    assert capped.makespan <= free.makespan  # small batches under constraints are searched whole, and may gain
    assert capped.lower_bound >= free.lower_bound or free.bound_name == "search"


TOO_SMALL = [
    (
        {"lengths": [3, 12, 9], "max_tokens_per_rank": 10},
        ["sample 1 has length 12, 2 more than max_tokens_per_rank = 10; for this batch max_tokens_per_rank mu", " 12"],
    ),
    (
        {"lengths": [9, 9, 9], "max_tokens_per_rank": 10},
        ["the batch has 27 tokens, 7 more than 2 ranks hold", "max_tokens_per_rank must be at least 18, which is"],
    ),
    (
        {"lengths": [6, 6, 6], "max_tokens_per_rank": 11},
        ["max_tokens_per_rank = 11: the lengths need at least 3 ranks of 11", "must be at least 12, which is enough"],
    ),
    (
        {"lengths": [6, 6, 6, 1, 1, 1, 1], "max_tokens_per_rank": 11, "equal_counts": True},
        ["max_tokens_per_rank must be at least 13, which is enough"],
    ),
    (
        {"lengths": [6, 6, 5, 5, 2], "max_tokens_per_rank": 12, "keep_together": [0, 0, 0, 1, 1]},
        ["= 12: samples 0, 1, 2 of length 17 together", "must be at least 17, which is enough"],
    ),
    (
        {"lengths": [6, 6, 5, 5], "max_tokens_per_rank": 20, "caps": {"kv": ([1, 1, 1, 4], 3)}},
        ["kv = 3: the amounts of all samples sum to 7", "the cap on kv must be at least 4, which is enough"],
    ),
    (
        {"lengths": [9, 9], "max_tokens_per_rank": 17, "caps": {"kv": ([1, 1], 9)},
         "allowed_ranks": [[True, False]] * 2},
        ["(length 18 together) may be in rank 0 only", "must be at least 18, which is enough"],
    ),
    (
        {"lengths": [7] * 7, "num_ranks": 3, "cut": balancer.MicroBatches(17, count=1)},
        ["cut.count = 1 is too few: under cut.tokens = 17 the 7 samples need at least 4 micro-batches",
         ", for this batch with cut.count = 1 cut.tokens must be at least 21, which is enough"],
    ),
    (
        {"lengths": [7, 1, 7, 1], "cost": "padded", "max_tokens_per_rank": 10},
        ["= 10 cannot be kept: some rank gets at least 14 tokens (bound 'padded'), and 14 is enough"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "words"), TOO_SMALL)
def test_an_error_about_a_cap_says_which_would_do_in_words_of_the_caller(asked, words):
    with pytest.raises(InfeasibleError) as caught:
        balancer.balance(**{"num_ranks": 2} | asked)
    for word in words:
        assert word in str(caught.value)
    assert "[:" not in str(caught.value)
    assert "sizes" not in str(caught.value)
    assert "slots" not in str(caught.value)


@given(problems(lengths=st.lists(st.integers(0, 60), max_size=16), methods=("auto",)))
@settings(max_examples=examples(25))
def test_the_cap_that_is_said_to_do_does(problem):
    """And none below the one that is said to be needed, as far as all plans of a few samples show."""
    asked = {**problem, "max_tokens_per_rank": 1}
    try:
        balancer.balance(**asked)
    except InfeasibleError as error:
        said = r"at least (\d+)(?: tokens \(.*\))?, (?:which is enough|and (\d+) is enough)$"
        found = re.search(said, str(error))
        assert found is not None, str(error)  # noqa: PT017
        least, enough = int(found[1]), int(found[2] or found[1])
        assert least <= enough
        assert max(naive_tokens(balancer.balance(**{**problem, "max_tokens_per_rank": enough}))) <= enough
        if least > 1:
            with pytest.raises(SolverError):
                balancer.balance(**{**problem, "max_tokens_per_rank": least - 1})


def test_quadratic_cost_gives_way_to_the_cap():
    """The free plan puts the long sample alone and all short ones together; the cap does not let it."""
    lengths = [100] + [10] * 30
    free = balancer.balance(lengths, 2, cost="quadratic:a=0,b=1")
    assert max(naive_tokens(free)) > 210
    plan = balancer.balance(lengths, 2, cost="quadratic:a=0,b=1", max_tokens_per_rank=210)
    assert max(naive_tokens(plan)) <= 210
    assert free.makespan <= plan.lower_bound <= plan.makespan, "the bound knows of the cap"


# --- import and warm-up ----------------------------------------------------------------------------------------------


HEAVY = "scipy.optimize", "scipy.sparse", "pyarrow", "click", "rich", "ortools", "pandas", "torch", "balancer.cuts"

FRESH = f"""
import sys
for name in ("relocate", "partition", "pipeline", "packing"):  # each first of all
    for module in [each for each in sys.modules if each.split(".")[0] == "solvers"]:
        del sys.modules[module]
    import solvers
    getattr(solvers, name)
from balancer.compat import BalancedBatchSampler
list(BalancedBatchSampler([3, 4, 5, 9] * 20, 2, 2, 0, sync="micro_batch", gradient_accumulation_steps=2, window=1))
print([name for name in {HEAVY} if name in sys.modules])  # numba looks at SciPy's version, and imports that module
import balancer
balancer.balance([3, 2, 1], 2).exchange(0)
print("pyarrow" in sys.modules)
"""


def test_a_sampler_brings_in_little_and_planning_no_file_formats(tmp_path):
    """Also beside an empty folder that has the name of a package."""
    (tmp_path / "solvers").mkdir()
    done = run_python(FRESH, cwd=tmp_path)
    assert done.stdout == "[]\nFalse\n", done.stdout + done.stderr


def test_names_that_are_loaded_when_they_are_asked_for():
    assert balancer.load_plan is not None
    with pytest.raises(AttributeError, match="no attribute 'lode_plan'"):
        balancer.lode_plan  # noqa: B018
    assert not {"Any", "TYPE_CHECKING", "check_solvers"} & set(dir(balancer))  # nor does tab completion offer others


@pytest.mark.parametrize("shadow", ["solvers/__init__.py", "solvers.py"])
def test_a_shadowing_solvers_is_named_with_the_remedy(shadow, tmp_path):
    path = tmp_path / shadow
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    done = run_python("import balancer", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert str(path.parent if path.name == "__init__.py" else path) in last
    assert "rename" in last


WARM = """
import importlib, pkgutil, sys, numpy as np, balancer, solvers
from solvers._jit import Kernel

balancer.warmup()
for package in (balancer.cuts, solvers):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
kernels = {
    value for name, module in list(sys.modules.items()) if name.split(".")[0] in ("solvers", "balancer")
    for value in vars(module).values() if isinstance(value, Kernel)
}
assert len(kernels) > 50, len(kernels)
print(sorted(f"{each.__module__}.{each.__name__}" for each in kernels if not each.signatures))
lengths, homes = np.arange(1, 65), np.arange(64) // 8
for given in lengths, lengths.tolist(), lengths.astype(np.int32)[::-1]:
    for cost in "linear", "quadratic:a=24576,b=1", "padded", "convolution:a=9,c=4":
        balancer.balance(given, 8, 4, homes, cost).exchange(0)
    for more in {"equal_counts": True}, {"max_tokens_per_rank": 400}, {"cut": balancer.MicroBatches(99)}:
        balancer.balance(given, 8, 4, homes.astype(np.int32), **more)
print([each.__name__ for each in kernels if len(each.signatures) > 1])
"""


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
def test_another_process_is_warmed_up_whole_and_makes_the_same_plans():
    """That all tests together call kernels with one signature is checked at their end."""
    here = several_digests()
    assert len(set(here)) > 30
    names = f"import json; COSTS, COUNTED_METHODS = {COSTS}, {COUNTED_METHODS}\n"
    seed = "0" if os.environ.get("PYTHONHASHSEED") == "1234" else "1234"
    code = f"{WARM}{names}{inspect.getsource(several_digests)}print(json.dumps(several_digests()))"
    done = run_python(code, PYTHONHASHSEED=seed)
    without, several, digests = done.stdout.splitlines() or [done.stderr] * 3
    assert (without, several) == ("[]", "[]")
    assert json.loads(digests) == here


@pytest.mark.parametrize(
    ("given", "placement"),
    [
        ({}, "any"),
        ({"home_rank": [0, 0, 0, 1, 1, 1, 2, 3]}, "relocate"),
        ({"ranks_per_node": 2}, "relocate"),
        ({"topology": Topology([3, 1])}, "relocate"),
        ({"topology": Topology([4])}, "any"),
        ({"ranks_per_node": 2, "placement": "rearrange"}, "rearrange"),
        ({"placement": "rearrange"}, "rearrange"),
    ],
)
def test_who_is_placed_how_by_default(given, placement):
    """From home where homes are given or there are several nodes; else groups take their own numbers."""
    lengths = [9, 8, 7, 6, 5, 4, 3, 2]
    plan = balancer.balance(lengths, 4, **given)
    assert plan.placement == placement
    if placement == "any":
        assert plan.rank_of_sample.tolist() == solvers.partition(lengths, 4).group_of_item.tolist()


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"caps": [([1, 1, 1], 2)]}, TypeError, "caps must map names to pairs"),
        ({"cut": 5}, TypeError, "cut must be one of balancer's cuts"),
        ({"min_samples_per_rank": -1}, ValueError, "min_samples_per_rank must be >= 0, got -1"),
        ({"max_tokens_per_rank": 2**63}, ValueError, "max_tokens_per_rank must be >= 1 and fit int64"),
        ({"max_tokens_per_rank": 0}, ValueError, "max_tokens_per_rank must be >= 1"),
        ({"max_tokens_per_rank": 1.5}, TypeError, "max_tokens_per_rank"),
        ({"placement": "any", "eps": -0.1}, ValueError, r"eps must be a share >= 0, such as .*, got -0\.1"),
        ({"time_budget": float("nan")}, ValueError, "time_budget must be a number of seconds > 0"),
        ({"time_budget": "soon"}, TypeError, "time_budget"),
        ({"num_ranks": 4, "ranks_per_node": 2, "topology": Topology([3, 1])}, ValueError, "topology has 4 ranks"),
    ],
)
def test_arguments_of_the_wrong_kind(given, kind, message):
    with pytest.raises(kind, match=message):
        balancer.balance([3, 2, 1], **{"num_ranks": 2} | given)


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=7), num_ranks=st.integers(1, 4), least=st.integers(0, 2)
)
def test_padded_rows_with_some_on_every_rank(lengths, num_ranks, least):
    """What collators that pad ask for: no rank without a sample, at the makespan that is best for that."""
    asked = {"lengths": lengths, "num_ranks": num_ranks, "cost": "padded", "min_samples_per_rank": least}
    if least * num_ranks > len(lengths):
        with pytest.raises(InfeasibleError, match=f"min_samples_per_rank: {num_ranks} ranks of at least {least} need"):
            balancer.balance(**asked)
        return
    plan = balancer.balance(**asked)
    assert min(len(plan.samples_on_rank(rank)) for rank in range(num_ranks)) >= least
    assert plan.makespan == plan.lower_bound == oracles.optimal_padded_makespan(lengths, num_ranks, least=least)
    capped = balancer.balance(**asked, max_tokens_per_rank=max(plan.makespan, 1))
    assert capped.digest() == plan.digest()


def test_ratios_of_padded_rows_with_equal_counts_rise_only_with_the_makespan():
    """Fewer padded tokens in all are no reason for a ratio to rise."""
    lengths = [90, 2, 2, 2, 60, 1, 1, 1, 50, 40, 30, 20]
    plan = balancer.balance(lengths, 3, cost="padded", equal_counts=True, home_rank=[0] * 4 + [1] * 4 + [2] * 4)
    assert plan.makespan == plan.home_makespan == 360
    assert plan.loads.sum() < plan.home_loads.sum()
    assert plan.imbalance_ratio == plan.home_imbalance_ratio


@given(lengths=st.lists(st.integers(1, 30), min_size=4, max_size=8).filter(lambda found: len(found) % 2 == 0))
@settings(max_examples=examples(15))
def test_what_every_sample_costs_alike_is_in_makespan_and_bound(lengths):
    """Under equal counts it is left out of what methods search with."""
    plan = balancer.balance(lengths, 2, cost="attention:constant=300,a=50", equal_counts=True)
    costs = [300 + 50 * length for length in lengths]
    optimum = oracles.optimal_makespan(costs, 2, equal_counts=True)
    assert plan.lower_bound <= optimum <= plan.makespan == max(plan.loads)
    assert plan.loads.tolist() == [sum(costs[i] for i in plan.samples_on_rank(rank)) for rank in range(2)]
    assert plan.lower_bound >= 300 * len(lengths) // 2 + 50 * -(-sum(lengths) // 2)
