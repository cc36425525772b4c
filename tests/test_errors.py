"""Errors are data: told in the words of one border after another, with the text of today where there is none."""

import copy
import json
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import balancer
import solvers
from solvers.arguments import as_costs, as_int64
from solvers.errors import (
    ArgumentError,
    ArgumentTypeError,
    CertificateError,
    ContradictionError,
    InfeasibilityCertificate,
    InfeasibleError,
    Named,
    SolverError,
    UsageError,
    WordedError,
    Wording,
    as_argument,
    as_words,
)
from solvers.packing import cut_shares, schedule_micro_batches

SAMPLES = Wording(
    {
        "caps": "{max_tokens_per_rank} = 100", "sizes": "lengths", "size": "length", "column": "", "group": "rank",
        "groups": "ranks", "item": "sample", "items": "samples", "max_items": "max_samples_per_rank",
        "cap": "micro_batch_tokens", "tokens[i] =": "its length", "sizes[i] =": "its length", "slots": "micro-batches",
        "num_slots": "num_micro_batches", "min_slots": "min_micro_batches",
    },
    {"sample": lambda item: 1000 + item},
)  # fmt: skip
"""As a trainer tells it: the samples of the batch at hand begin at 1000."""

ROWS = Wording(
    {"sample": "row"},
    {"row": lambda sample: sample - 1000},
    {"row": ("document", lambda row: row // 2)},
)
"""As a log tells it, two rows a document."""

OPTIONS = Wording({
    "max_tokens_per_rank": "--max-tokens-per-rank", "max_samples_per_rank": "--max-samples-per-rank",
    "num_micro_batches": "--micro-batches", "allow_empty=True": "--allow-empty", "over_long='own'": None,
    "method='exact'": "--method exact", "time_budget": "--time-budget", "num_groups": "--groups", "eps": "--eps",
    "a finite number or Fraction": "a finite number",
})  # fmt: skip
"""As a command line tells it that gives no sample a micro-batch of its own."""


def test_a_rule_with_its_fields_and_remedies():
    error = SolverError("{caps} of {item}: {what}", ["give {num_slots}", "or more"], item=Named("item", 3), what="no")
    assert str(error) == "caps of item 3: no; give num_slots, or more"
    assert error.args == (str(error),)
    assert str(SolverError("plain")) == "plain"
    assert str(error.with_remedy("").with_remedy("as {one} says", one="{x}")) == f"{error}, as {{x}} says"


def test_wordings_chain():
    error = InfeasibleError(
        "{caps}: {items} of {sizes}{column} in {who}", items=Named("item", [0, 4]), column="[:, 1]",
        who=Named("group", 2),
    )  # fmt: skip
    assert str(error) == "caps: items 0, 4 of sizes[:, 1] in group 2"
    told = error.in_words(SAMPLES)
    assert str(told) == "max_tokens_per_rank = 100: samples 1000, 1004 of lengths in rank 2"
    assert str(told.in_words(ROWS)) == "max_tokens_per_rank = 100: rows 0, 4 of lengths in rank 2"
    assert str(told.in_words(ROWS).in_words(OPTIONS)) == "--max-tokens-per-rank = 100: rows 0, 4 of lengths in rank 2"
    assert str(error) == "caps: items 0, 4 of sizes[:, 1] in group 2"  # as it was
    assert type(told) is InfeasibleError
    assert told.fields is error.fields


def test_owners():
    error = SolverError("{one} beside {all}", one=Named("item", 5), all=Named("item", range(7)))
    told = error.in_words(SAMPLES).in_words(ROWS)
    assert str(told) == "row 5 (of document 2) beside rows 0, 1, 2, 3, 4, ... (7)"
    given = SolverError("{it}", it=Named("image", 7, Named("item", 3)))
    assert str(given) == "image 7 (of item 3)"
    assert str(given.in_words(SAMPLES).in_words(ROWS)) == "image 7 (of row 3 (of document 1))"


def test_what_cannot_be_said_is_withheld():
    error = SolverError("as {over_long='own'}", ["{method='auto'} does", "{over_long='own'} puts {item} apart"])
    assert str(error).endswith("; method='auto' does, over_long='own' puts item apart")
    assert str(error.in_words(OPTIONS)) == "as over_long='own'; method='auto' does"  # a rule is told in any case
    renamed = error.in_words(Wording({"over_long='own'": "long={over_long='own'}"})).in_words(OPTIONS)
    assert str(renamed) == "as long=over_long='own'; method='auto' does"
    assert str(error.in_words(Wording({"method='auto'": None})).in_words(OPTIONS)) == "as over_long='own'"


def test_places():
    error = SolverError("too much of {caps}").within("phase 'all'")
    assert str(error.within("log.parquet", "step 3")) == "log.parquet: step 3: phase 'all': too much of caps"
    braces = error.within("{caps}.parquet").in_words(SAMPLES)
    assert str(braces) == "{caps}.parquet: phase 'all': too much of max_tokens_per_rank = 100"


def test_an_error_inside_another_is_told_in_the_same_words():
    inner = InfeasibleError("{caps} too small", remedy="give {max_items}")
    outer = SolverError("nothing fits: {why}", why=inner)
    assert str(outer.in_words(SAMPLES)) == (
        "nothing fits: max_tokens_per_rank = 100 too small; give max_samples_per_rank"
    )


def test_arguments():
    error = ArgumentError("min_items", "be >= {least}", -1, index=3, remedy="give {max_items}", least=0)
    assert str(error) == "min_items[3] must be >= 0, got -1; give max_items"
    assert (error.argument, error.index, error.value, error.remedy) == ("min_items", 3, -1, ("give {max_items}",))
    assert isinstance(error, ValueError)
    assert isinstance(ArgumentTypeError("x", "be an integer", "'a'"), TypeError)
    assert str(ArgumentTypeError("affinity", "be three arrays")) == "affinity must be three arrays"
    assert as_argument("caps['a'][3]") == "{caps}['a'][3]"
    assert as_argument("num_ranks") == "{num_ranks}"
    assert as_words(["caps", "speeds"], " and ") == "{caps} and {speeds}"


def test_braces_in_what_users_give():
    name = "caps['{group}']"
    with pytest.raises(ArgumentError, match=re.escape(f"{name}[1] must be >= 0, got -1")) as caught:
        as_costs([1, -1], name)
    assert str(caught.value.in_words(SAMPLES)) == "max_tokens_per_rank = 100['{group}'][1] must be >= 0, got -1"
    with pytest.raises(UsageError, match=re.escape(f"overflows at {name}[1] = {2**62}")):
        as_costs([2**62, 2**62], name)
    with pytest.raises(ArgumentTypeError, match=re.escape("got {'{caps}': 1}")):
        solvers.partition([1], {"{caps}": 1})
    with pytest.raises(UsageError, match=re.escape("unknown method '{caps}'; known methods are auto")):
        solvers.partition([1], 1, "{caps}")
    assert str(SolverError("{why}", why="{caps} {").in_words(SAMPLES)) == "{caps} {"
    assert str(SolverError("a } that is no template")) == "a } that is no template"
    assert str(CertificateError("group {0} of {caps} {}").in_words(SAMPLES)) == "group {0} of {caps} {}"

    class Odd:
        def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
            raise TypeError("no {group} here")

    with pytest.raises(TypeError, match=re.escape("integers: no {group} here")):
        as_int64("costs", Odd())


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])  # noqa: S301
def test_pickling_keeps_what_is_told(again: Callable[[Any], Any]):
    certificate = InfeasibilityCertificate("caps", range(3), [0], 5, 4, 0)
    error = InfeasibleError("{caps} of {item} {", certificate, "give {max_items}", item=Named("item", 3))
    for told in (error, error.in_words(SAMPLES).within("{caps}.csv")):
        other = again(told)
        assert (type(other), str(other), other.args) == (InfeasibleError, str(told), told.args)
        assert other.certificate == certificate
        assert str(other.within("step 3").in_words(SAMPLES).with_remedy("so")) == f"step 3: {told}; so"
    told = again(ArgumentError("sizes", "fit", "{0}", index=2).in_words(SAMPLES))
    assert (str(told), told.argument, told.index) == ("lengths[2] must fit, got {0}", "sizes", 2)
    assert str(again(ContradictionError("{min_items} = 3"))) == "min_items = 3"


# --- every kind of error, told by the solvers, to a trainer, and on the command line ----------------------------------

FIVE = {"costs": [4] * 5, "tokens": [5] * 5, "num_ranks": 2, "cap": 10}
SHARES = FIVE | {"rank_of_item": [0] * 3 + [1] * 2}

EXAMPLES: dict[str, tuple[Callable[[], Any], type[WordedError], str, str]] = {
    "argument": (
        lambda: solvers.partition([1], 0), ArgumentError,
        "num_groups must be >= 1, got 0", "--groups must be >= 1, got 0",
    ),
    "together": (
        lambda: solvers.partition([1], 1, caps=3), UsageError,
        "caps limit sizes: give sizes as well", "--max-tokens-per-rank = 100 limit lengths: give lengths as well",
    ),
    "contradiction": (
        lambda: solvers.partition([1] * 3, 1, equal_counts=True, max_items=2), ContradictionError,
        "equal_counts contradicts max_items = 2: 3 items in 1 groups make 3 in a group",
        "equal_counts contradicts --max-samples-per-rank = 2: 3 samples in 1 ranks make 3 in a rank",
    ),
    "infeasible": (
        lambda: solvers.partition([1] * 3, 2, sizes=[[1, 1], [1, 9], [1, 2]], caps=[9, 7]), InfeasibleError,
        "caps: item 1 of size[:, 1] 9 exceeds every cap that it may be under, the largest is 7: 2 too much",
        "--max-tokens-per-rank = 100: sample 1001 of length 9 exceeds every cap that it may be under, the largest is "
        "7: 2 too much",
    ),
    "not found": (
        lambda: solvers.partition([1] * 6, 2, "lpt", sizes=[[5, 0], [5, 8], [4, 9], [3, 1], [3, 1], [0, 1]],
                                  caps=[10, 10]), SolverError,
        "list scheduling found no assignment that keeps caps, nor was it proven that there is none; remedy: "
        "method='auto'",
        "list scheduling found no assignment that keeps --max-tokens-per-rank = 100, nor was it proven that there is "
        "none; remedy: method='auto'",
    ),
    "unsupported": (
        lambda: solvers.partition([1], 1, "karmarkar_karp", max_items=2), UsageError,
        "method 'karmarkar_karp' does not support max_items; methods that do: auto, lpt, exact",
        "method 'karmarkar_karp' does not support --max-samples-per-rank; methods that do: auto, lpt, exact",
    ),
    "too long": (
        lambda: schedule_micro_batches(**FIVE | {"cap": 4}), InfeasibleError,
        "no micro-batch can hold sample 0: tokens[0] = 5 is over cap = 4 by 1 (samples over the cap: 5); "
        "leave them out beforehand, raise cap, over_long='own' gives each a micro-batch of its own",
        "no micro-batch can hold sample 1000: its length 5 is over micro_batch_tokens = 4 by 1 (samples over the cap: "
        "5); leave them out beforehand, raise micro_batch_tokens",
    ),
    "too few slots": (
        lambda: schedule_micro_batches(**FIVE, num_slots=1), InfeasibleError,
        "num_slots = 1 is too few: under cap = 10 the 5 samples need at least 3 micro-batches, 2 ranks of 1 slots "
        "hold 2, short by 1; the least num_slots that may do is 2",
        "--micro-batches = 1 is too few: under micro_batch_tokens = 10 the 5 samples need at least 3 micro-batches, 2 "
        "ranks of 1 micro-batches hold 2, short by 1; the least --micro-batches that may do is 2",
    ),
    "too few slots of a rank": (
        lambda: cut_shares(**SHARES, num_slots=1), InfeasibleError,
        "num_slots = 1 is too few: under cap = 10 the 3 samples of rank 0 need at least 2 micro-batches, short by 1; "
        "the least num_slots that may do is 2",
        "--micro-batches = 1 is too few: under micro_batch_tokens = 10 the 3 samples of rank 0 need at least 2 "
        "micro-batches, short by 1; the least --micro-batches that may do is 2",
    ),
    "too few samples": (
        lambda: cut_shares(**SHARES, num_slots=3), InfeasibleError,
        "rank 1 has 2 samples for num_slots = 3 micro-batches, as many as every rank has, short by 1; "
        "allow_empty=True permits empty micro-batches",
        "rank 1 has 2 samples for --micro-batches = 3 micro-batches, as many as every rank has, short by 1; "
        "--allow-empty permits empty micro-batches",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", EXAMPLES)
def test_examples(what: str):
    call, kind, plain, told = EXAMPLES[what]
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert str(caught.value) == plain
    assert str(caught.value.in_words(SAMPLES).in_words(OPTIONS)) == told
    assert str(pickle.loads(pickle.dumps(caught.value))) == plain  # noqa: S301


@pytest.mark.parametrize(
    ("what", "certificate"),
    [
        ("too few slots", InfeasibilityCertificate("num_slots", [0, 1, 2, 3, 4], range(2), 3, 2)),
        ("too few slots of a rank", InfeasibilityCertificate("num_slots", [0, 1, 2], [0], 2, 1)),
        ("too few samples", InfeasibilityCertificate("allow_empty", [3, 4], [1], 3, 2)),
        ("too long", InfeasibilityCertificate("cap", [0, 1, 2, 3, 4], [], 5, 4)),
    ],
)
def test_what_borders_know_errors_by(what: str, certificate: InfeasibilityCertificate):
    with pytest.raises(InfeasibleError) as caught:
        EXAMPLES[what][0]()
    assert caught.value.certificate == certificate


# --- one error at every border ---------------------------------------------------------------------------------------

LENGTHS = [3, 4, 3, 4, 3, 70, 3, 4]
"""Eight samples on two ranks; the sixth is over every cap of 60."""


IMAGES = [[3], [4], [3], [4], [3], [1, 2, 70], [], []]
"""As lists, it is the third item of the sixth sample."""

LLM = balancer.Phase("llm", "text")
ENCODER = balancer.Phase("vision", "images", max_tokens_per_rank=60)
OVER = "has length 70, 10 more than max_tokens_per_rank = 60; for this batch max_tokens_per_rank must be at least 70"


def in_a_trainer(columns, phases):
    """As the dispatcher's planning does, given what all ranks handed in: ranks 0 and 1 five samples and three."""
    gathering = pytest.importorskip("balancer.executor.gathered", exc_type=ImportError)
    from balancer.problem.setup import Setup
    from balancer.step_planner import plan_step

    home = balancer.Placement.by_sample_order(np.repeat(np.arange(2, dtype=np.int32), [5, 3]), 2)
    gathered = gathering.Gathered(home, {}, {}, columns)
    try:
        plan_step(gathered.step(Setup(balancer.Topology([2]), phases)))
    except WordedError as error:
        raise error.in_words(gathered.wording()) from None


def test_the_library_calls_a_sample_by_its_index():
    with pytest.raises(InfeasibleError, match=re.escape(f"sample 5 {OVER}")) as caught:
        balancer.balance(LENGTHS, 2, max_tokens_per_rank=60)
    assert str(caught.value).startswith("sample 5 ")
    with pytest.raises(InfeasibleError, match=f"^phase 'llm': sample 5 {OVER}"):
        balancer.orchestrate({"text": LENGTHS}, [balancer.Phase("llm", "text", max_tokens_per_rank=60)], 2)


def test_an_encoder_calls_an_item_by_its_index_and_its_sample():
    with pytest.raises(InfeasibleError, match=re.escape(f"phase 'vision': item 7 (of sample 5) {OVER}")):
        balancer.orchestrate({"images": balancer.Ragged.of(IMAGES), "text": LENGTHS}, [ENCODER, LLM], 2)


def test_a_trainer_is_told_which_rank_handed_the_sample_in():
    columns = {"text": np.asarray(LENGTHS)}
    phases = (balancer.Phase("all", "text", max_tokens_per_rank=60),)
    with pytest.raises(InfeasibleError, match=re.escape(f"sample 5 (entry 0 of rank 1) {OVER}")):
        in_a_trainer(columns, phases)
    columns = {"images": balancer.Ragged.of(IMAGES), "text": np.asarray(LENGTHS)}
    expected = f"phase 'vision': item 7 (of sample 5 (entry 0 of rank 1)) {OVER}"
    with pytest.raises(InfeasibleError, match=re.escape(expected)):
        in_a_trainer(columns, (ENCODER, LLM))


def test_the_command_line_is_told_of_rows_and_keys(tmp_path, capsys):
    from balancer.cli.main import main

    log = tmp_path / "log.jsonl"
    asked = ["plan", str(log), "--ranks", "2", "--batch-per-rank", "2"]
    encoder = ["--set", "phase.vision.length=images", "--set", "phase.llm.length=text"]
    llm = ["--set", "phase.llm.length=text", "--set", "phase.llm.max_tokens_per_rank=60"]
    log.write_text("".join(
        json.dumps({"images": images, "text": text}) + "\n"
        for images, text in zip(IMAGES, LENGTHS, strict=True)
    ))  # fmt: skip
    for options, place in (
        (["--length", "text", "--set", "phase.all.max_tokens_per_rank=60"], "row 5"),
        (llm, "phase 'llm': row 5"),
        ([*encoder, "--set", "phase.vision.max_tokens_per_rank=60"], "phase 'vision': item 3 (of row 5)"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main([*asked, *options])
        assert stopped.value.code == 1
        assert capsys.readouterr().err.startswith(f"balancer: {log}: step 1: {place} {OVER}")


def test_what_several_samples_prove_together_is_told_of_them_all():
    """Keys, of which one is on five samples, and at most four samples a rank."""
    columns = {"text": [1] * 8, "key": [0, 1, 7, 7, 7, 7, 7, 2]}
    phases = (balancer.Phase("all", "text", keep_together="key", max_samples_per_rank=4),)
    together = "must stay together, 5 of them, and a rank may hold 4"
    with pytest.raises(InfeasibleError, match=f"max_samples_per_rank: samples 2, 3, 4, 5, 6 {together}"):
        in_a_trainer({name: np.asarray(column) for name, column in columns.items()}, phases)
    log = {name: np.array([*column, *column]) for name, column in columns.items()}
    asked = {"num_ranks": 2, "batch_per_rank": 4, "length": "text", "keep_together": "key", "max_samples_per_rank": 4}
    with pytest.raises(InfeasibleError, match=f"step 0: max_samples_per_rank: rows 2, 3, 4, 5, 6 {together}"):
        balancer.plan_log(log, **asked)
