"""A phase's module: useful and executed FLOPs of its items, throughput, and memory of activations."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.cost import AudioEncoder, CostModel, LengthPolynomial, Module, module
from balancer.cost.memory import kept_bytes
from balancer.cost.throughput import SaturatingThroughput, Throughput
from solvers.arguments import as_count


@dataclass(frozen=True, slots=True)
class PhaseModel:
    """A module as the simulator sees it.

    Attributes
    ----------
    useful : LengthPolynomial
        FLOPs of an item, forward and backward, nothing recomputed: what MFU counts.
    executed : LengthPolynomial
        What runs for it: more than that with checkpointing.
    throughput : Throughput
        Of one GPU, by the elements that its rank holds.
    kept_bytes : float
        An element's activations that wait for the backward pass.
    working_bytes : float
        Besides, those of the layer that is at work: only with checkpointing.
    piece : int or None
        Items are cut into pieces of this length, such as tiles of an image; attention stays within a piece. A last,
        shorter piece counts as a fraction.
    stem : LengthPolynomial or None
        What of `executed` the convolutions of an audio encoder take: they see rows padded to the longest of a rank (or
        of a micro-batch) if the phase's cost is ``convolution``.

    Examples
    --------
    >>> model = PhaseModel.of("qwen2-7b", SaturatingThroughput(4e14))
    >>> model.useful_flops(np.array([4096])).tolist()
    [183861107490816.0]
    """

    useful: LengthPolynomial
    executed: LengthPolynomial
    throughput: Throughput
    kept_bytes: float = 0.0
    working_bytes: float = 0.0
    piece: int | None = None
    stem: LengthPolynomial | None = None

    @classmethod
    def of(
        cls, model: str | Module, throughput: Throughput, *, piece: int | None = None, checkpointing: bool = False
    ) -> "PhaseModel":
        """Take FLOPs and activations from a shape: a name or ``config.json`` as for :func:`balancer.cost.flops`.

        Raises
        ------
        InputError
            An unknown name (the known ones are listed), or a configuration that lacks a field.
        ValueError
            A piece that is no count.
        """
        found = module(model) if isinstance(model, str) else model
        kept = kept_bytes(found, recompute=checkpointing)
        executed = found.flops(checkpointing=checkpointing)
        size = None if piece is None else as_count("piece", piece)
        stem = found.stem_flops(checkpointing=checkpointing) if isinstance(found, AudioEncoder) else None
        whole = found.layers * kept.per_layer + kept.head
        return cls(found.flops(), executed, throughput, whole, kept.at_work, size, stem)

    @classmethod
    def on(
        cls,
        model: str | Module,
        peak_flops: float,
        efficiency: float,
        half_tokens: float = 0.0,
        *,
        piece: int | None = None,
        checkpointing: bool = False,
    ) -> "PhaseModel":
        """As :meth:`of`, at a fraction `efficiency` of a GPU's peak; `half_tokens` elements reach half of that."""
        if not 0 < efficiency <= 1:
            raise ValueError(f"efficiency must be > 0 and <= 1, a fraction of the peak, got {efficiency!r}")
        throughput = SaturatingThroughput(efficiency * peak_flops, half_tokens)
        return cls.of(model, throughput, piece=piece, checkpointing=checkpointing)

    def useful_flops(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Useful FLOPs of each item, float64[k]."""
        return self._flops(self.useful, lengths)

    def executed_flops(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """FLOPs that run for each item, float64[k]."""
        return self._flops(self.executed, lengths)

    def cost_model(self) -> CostModel:
        """Integer cost to plan with: FLOPs, or elements where items are cut into pieces."""
        return self.useful.cost_model() if self.piece is None else CostModel()

    def _flops(self, flops: LengthPolynomial, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """FLOPs of each item; an item without elements is not computed."""
        if self.piece is not None:
            return np.asarray(lengths * (flops.exact(self.piece) / self.piece), dtype=np.float64)
        return np.where(lengths > 0, flops(lengths), 0.0)
