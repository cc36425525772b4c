"""The checker finds whatever is wrong with a result."""

import dataclasses

import numpy as np
import pytest

import solvers
from solvers import CertificateError, SolveStatus
from solvers.rearrangement import BoundCertificate

VOLUMES = [[1, 0, 0, 8], [9, 0, 1, 0], [0, 0, 7, 2], [0, 5, 3, 0]]
NODES = [0, 0, 1, 1]


def result_of(objective: str) -> solvers.RearrangementResult:
    result = solvers.rearrange(VOLUMES, NODES, "auto", objective)  # type: ignore[arg-type]
    solvers.check_rearrangement(VOLUMES, NODES, result)
    return result


def ranks(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


SUM, MAX = result_of("sum"), result_of("max")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"rank_of_group": ranks(0, 1, 2)}, "every group has one rank: 4 groups"),
        ({"rank_of_group": SUM.rank_of_group.astype(np.int64)}, "must be int32"),
        ({"rank_of_group": ranks(0, 1, 2, 4)}, "group 3 is on rank 4, outside 0..3"),
        ({"rank_of_group": ranks(0, 1, 2, 2)}, "every rank has one group: rank 2 has 2"),
        ({"rank_of_group": ranks(0, 1, 2, 3)}, "the volumes that cross are"),
        ({"crossing_volume": SUM.crossing_volume + 1}, "the volumes that cross are"),
        *[
            ({name: getattr(SUM, name) + 1}, f"{name} is {getattr(SUM, name)}, not {getattr(SUM, name) + 1}")
            for name in (
                "inter_node_volume",
                "intra_node_volume",
                "max_rank_send",
                "max_rank_receive",
                "max_node_send",
                "max_node_receive",
                "value",
            )
        ],
        ({"lower_bound": SUM.value + 1}, "must be within 0..value"),
        ({"lower_bound": -1, "status": SolveStatus.FEASIBLE}, "must be within 0..value"),
        ({"status": SolveStatus.FEASIBLE}, "status is feasible"),
        ({"lower_bound": SUM.value - 1}, "status is optimal"),
        ({"bound_name": "magic"}, "unknown argument 'magic'; known are dual, cp_sat"),
        (
            {"certificate": BoundCertificate(SUM.certificate.rank_multiplier, np.array([0, 10**6]))},
            "its certificate proves",
        ),
        (
            {"certificate": BoundCertificate(np.ones(3, np.int64), SUM.certificate.place_price)},
            "rank_multiplier must have 4 entries",
        ),
        (
            {"certificate": BoundCertificate(np.array([2, 1, 1, 1]), SUM.certificate.place_price)},
            "rank_multiplier must be 1 for the sum",
        ),
        (
            {"certificate": BoundCertificate(np.array([-1, 1, 1, 1]), SUM.certificate.place_price)},
            "rank_multiplier must be >= 0",
        ),
        (
            {"certificate": BoundCertificate(np.ones(4, np.int64), np.zeros(3, np.int64))},
            "place_price must have 2 entries",
        ),
    ],
)
def test_every_rule(change: dict[str, object], rule: str) -> None:
    with pytest.raises(CertificateError, match=rule):
        solvers.check_rearrangement(VOLUMES, NODES, dataclasses.replace(SUM, **change))  # type: ignore[arg-type]


def test_multipliers_for_the_largest_send() -> None:
    none = dataclasses.replace(MAX.certificate, rank_multiplier=np.zeros(4, dtype=np.int64))
    with pytest.raises(CertificateError, match="not all 0"):
        solvers.check_rearrangement(VOLUMES, NODES, dataclasses.replace(MAX, certificate=none))
    one = dataclasses.replace(MAX.certificate, rank_multiplier=np.array([1, 0, 0, 0]))
    high = dataclasses.replace(
        MAX, certificate=one, lower_bound=MAX.value, status=SolveStatus.OPTIMAL, bound_name="dual"
    )
    with pytest.raises(CertificateError, match="its certificate proves 0 at most"):
        solvers.check_rearrangement(VOLUMES, NODES, high)


def test_classes_and_weights_are_checked_too() -> None:
    classes = [0, 1, 0, 1]
    result = solvers.rearrange(VOLUMES, NODES, class_of_group=classes, class_of_rank=classes, weights=[3])
    solvers.check_rearrangement(VOLUMES, NODES, result, class_of_group=classes, class_of_rank=classes, weights=[3])
    with pytest.raises(CertificateError, match=r"group . is of class ., its rank"):
        solvers.check_rearrangement(VOLUMES, NODES, SUM, class_of_group=SUM.rank_of_group, class_of_rank=[1, 0, 2, 3])
    with pytest.raises(CertificateError, match="value is"):
        solvers.check_rearrangement(VOLUMES, NODES, result, class_of_group=classes, class_of_rank=classes)
