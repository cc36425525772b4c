"""A planned pipeline, run on ``torch.distributed``: the stages of this process, by the list of ops of its device.

It shows that planned pipelines run: 1F1B, interleaved and GPipe, slots of any size and empty ones, frozen stages,
recomputation, tied parameters, encoders in gaps. Messages go through host memory, on gloo, so it is no trainer's part.
``tests/examples/test_pipeline.py`` trains with it beside one process; ``docs/how_to/pipelines.md`` is its page.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from pipeline_lists import Key, Messages, named
from torch import Tensor
from torch.nn import Module, Parameter
from torch.utils.checkpoint import checkpoint

from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.gaps import DeviceOp
from balancer.plan.step_plan import StepPlan
from balancer.problem.cuts.pipeline_stages import PipelineStages
from solvers.errors import ArgumentError, UsageError

__all__ = ["PipelineError", "PipelineRunner"]

TIMEOUT = timedelta(minutes=2)
Output = tuple[Sequence[int], torch.dtype]
Loss = Callable[[Tensor, Any], Tensor]


class PipelineError(RuntimeError):
    """Processes cannot go on together; the message names those that are the reason."""


class PipelineRunner:
    """Runs the stages of this process as a plan says. All processes of the pipelines make it at the same time.

    A slot is run at its own size: how many rows travel follows from the plan, so nothing is padded, and no header is
    sent. Slots without samples are not run. Messages go through host memory, on gloo.

    Parameters
    ----------
    modules : mapping of int to Module
        This process's stages: those whose number, modulo the devices, is the rank of this process in `group`. A stage
        is called with what the stage before puts out (but the first), then with its entry of `inputs`, if it has one,
        then, if tasks run in gaps and it is the first, with their outputs: by encoder, rows in the order of samples,
        items and elements. It keeps the rows: its output has as many as the plan says.
    group : ProcessGroup, optional
        The processes of one pipeline, in the order of the plan's devices; by default all.
    outputs : mapping of int or str to (shape, dtype)
        Of each stage but the last, and of each encoder in gaps, the shape of one row of its output.
    loss : callable
        Of the last stage's output and the labels of a slot: a sum over rows, so that gradients are sums over slots.
    encoders : mapping of str to Module, optional
        Of encoders in gaps, the replica of this process. Each is called with the rows of one piece.
    dp_group : ProcessGroup, optional
        The processes with the same device in all pipelines, in the order of the plan's ranks.
    shared : mapping of str to Parameter, optional
        Parameters that several stages hold, by a name (tied embeddings): they get the sum of their gradients.
    timeout : timedelta
        How long any one message waits for a process.

    Raises
    ------
    ArgumentError, PipelineError
        Modules that are not those of this process, or that another process has none for; on all of them.
    """

    def __init__(
        self,
        modules: Mapping[int, Module],
        group: Any = None,
        *,
        outputs: Mapping[int | str, Output],
        loss: Loss,
        encoders: Mapping[str, Module] | None = None,
        dp_group: Any = None,
        shared: Mapping[str, Parameter] | None = None,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        self.group = _gloo(dist.group.WORLD if group is None else group, timeout)
        self.dp_group = None if dp_group is None else _gloo(dp_group, timeout)
        self.device, self.num_devices = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.rank, self.num_ranks = 0, 1  # of the plan: the number of this process's pipeline, and how many there are
        if self.dp_group is not None:
            self.rank, self.num_ranks = dist.get_rank(self.dp_group), dist.get_world_size(self.dp_group)
        self.modules, self.encoders = dict(sorted(modules.items())), dict(sorted((encoders or {}).items()))
        self.outputs, self.loss, self._shared = dict(outputs), loss, dict(sorted((shared or {}).items()))
        mine = {"stages": sorted(modules), "shared": list(self._shared)}
        of_pipe = self._held_by_all(mine, self._odd_modules())[self.rank]
        held = sorted(stage for each in of_pipe for stage in each["stages"])
        self.num_stages = len(held)
        if held != list(range(len(held))):
            raise ArgumentError("modules", "be of all stages from 0 on, each on one process", held)
        self._owners = {name: [d for d, each in enumerate(of_pipe) if name in each["shared"]] for name in self._shared}
        self.on = next((p.device for p in self._parameters()), torch.device("cpu"))

    def _odd_modules(self) -> Exception | None:
        """Return what is wrong with the arguments of this process alone."""
        if not self.modules:
            return ArgumentError("modules", f"have a stage of device {self.device}", "none")
        for stage in self.modules:
            if stage % self.num_devices != self.device:
                rule = f"be stages of device {self.device} of {self.num_devices}, stage s being on device s modulo them"
                return ArgumentError("modules", rule, stage)
        types = {dtype for name, (_, dtype) in self.outputs.items() if isinstance(name, str)}
        if len(types) > 1:
            return ArgumentError("outputs", "have one dtype for all encoders", sorted(map(str, types)))
        return None

    def _parameters(self) -> list[Parameter]:
        """The parameters to train, each once, in one order on all replicas."""
        of = (p for module in (*self.modules.values(), *self.encoders.values()) for p in module.parameters())
        return [p for p in dict.fromkeys(of) if p.requires_grad]

    def _held_by_all(self, held: Any, failure: Exception | None) -> list[list[Any]]:
        """Return what all processes hold, by rank and device; an error on all if one has failed."""
        where = f"replica {self.rank}, device {self.device} (global rank {dist.get_rank()})"
        text = "" if failure is None else f"{where}: {type(failure).__name__}: {failure}"
        of_pipe = [None] * self.num_devices
        dist.all_gather_object(of_pipe, (text, held), self.group)
        said: list[Any] = [of_pipe]
        if self.dp_group is not None:
            said = [None] * self.num_ranks
            dist.all_gather_object(said, of_pipe, self.dp_group)
        if failure is not None:
            raise failure
        if failed := [text for of_rank in said for text, _ in of_rank if text]:
            raise PipelineError(f"cannot go on: {'; '.join(failed[:4])}")
        return [[each for _, each in of_rank] for of_rank in said]

    def step(
        self, plan: DispatchPlan | StepPlan, inputs: Mapping[int | str, Any], labels: Sequence[Any] = ()
    ) -> Tensor:
        """Run one step; gradients of all slots and replicas are added to what parameters have. All processes call it.

        Parameters
        ----------
        plan : DispatchPlan or StepPlan
            The same on all processes, with as many devices as `group` has, and as many ranks as `dp_group`.
        inputs : mapping
            ``inputs[stage][slot]`` is what a stage of this process is given besides; ``inputs[encoder][sample, item]``
            the rows of an item that a task of this device computes, sample being a number in the global batch.
        labels : sequence
            On the process of the last stage, those of each slot.

        Returns
        -------
        Tensor
            float64[]: the loss, summed over slots and replicas, on every process.

        Raises
        ------
        PipelineError
            Processes hold different plans, or one could not begin: on all processes, before anything is sent.
        RuntimeError
            Of torch.distributed: another process failed or is gone, and a message does not come in time.
        ArgumentError, UsageError
            What this process was given does not go with the plan.
        """
        run, failure = None, None
        try:
            run = _Step(self, plan, inputs, labels)
        except Exception as error:  # the others must hear of it
            failure = error
        digests = self._held_by_all("" if run is None else run.digest(), failure)
        self._check_alike([digest for of_rank in digests for digest in of_rank])
        before = [(p, p.grad) for p in self._parameters()]
        for p, _ in before:
            p.grad = None
        assert run is not None  # else its error was raised
        total = run.run()
        self._sum_gradients()
        for p, grad in before:
            if grad is not None:
                p.grad = grad if p.grad is None else grad + p.grad
        both = torch.tensor([total], dtype=torch.float64)
        for group in self._groups():
            dist.all_reduce(both, group=group)
        return both[0]

    def _groups(self) -> list[Any]:
        """The groups of the pipeline, and of the same device in all pipelines, where there are several."""
        return [self.group, *([] if self.dp_group is None else [self.dp_group])]

    def _check_alike(self, digests: list[str]) -> None:
        usual = Counter(digests).most_common(1)[0][0]
        if odd := [number for number, digest in enumerate(digests) if digest != usual]:
            who = ", ".join("replica {}, device {}".format(*divmod(number, self.num_devices)) for number in odd)
            raise PipelineError(f"{who} hold another plan, or other outputs; nothing has been sent")

    def _sum_gradients(self) -> None:
        """Add up gradients: of shared parameters over their stages, of encoders over devices, of all over replicas."""
        for number, (name, owners) in enumerate(self._owners.items()):
            mine = _gradient(self._shared[name]).cpu().contiguous()
            others = [d for d in owners if d != self.device]
            came = {d: torch.empty_like(mine) for d in others} | {self.device: mine}
            works = [self.receive(came[d], d, number) for d in others] + [self.send(mine, d, number) for d in others]
            for work in works:
                work.wait()
            # in the order of devices, so that all of them get the same bits
            self._shared[name].grad = sum(came[d] for d in owners).to(self.on)
        of_encoders = [p for module in self.encoders.values() for p in module.parameters() if p.requires_grad]
        for group, parameters in zip(self._groups(), (of_encoders, self._parameters()), strict=False):
            by_type: dict[torch.dtype, list[Parameter]] = defaultdict(list)
            for p in parameters:
                by_type[p.dtype].append(p)
            for alike in by_type.values():
                flat = torch.cat([_gradient(p).reshape(-1) for p in alike]).cpu()
                dist.all_reduce(flat, group=group)
                for p, part in zip(alike, flat.split([p.numel() for p in alike]), strict=True):
                    p.grad = part.view_as(p).to(p.device)

    # Messages.

    def send(self, tensor: Tensor, device: int, tag: int) -> Any:
        """Begin to send a tensor on the host to a device of this pipeline; what this returns is waited for."""
        return dist.isend(tensor, dist.get_global_rank(self.group, device), self.group, tag)

    def receive(self, tensor: Tensor, device: int, tag: int) -> Any:
        """Begin to fill a tensor on the host with what a device sends; what this returns is waited for."""
        return dist.irecv(tensor, dist.get_global_rank(self.group, device), self.group, tag)


def _gloo(group: Any, timeout: timedelta) -> Any:
    """Make a gloo group of the processes of a group."""
    members = dist.get_process_group_ranks(group)
    return dist.new_group(members, timeout, "gloo", use_local_synchronization=True)


def _gradient(parameter: Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _work_of(op: DeviceOp) -> tuple[Any, ...]:
    """Return what a forward and its backward have in common: a slot's work in a stage, or a part of a sample's."""
    return op.slot, op.stage, op.sample, op.part


class _Step:
    """One step of a runner: checked when it is made, before any process waits."""

    def __init__(
        self, runner: PipelineRunner, plan: DispatchPlan | StepPlan, inputs: Mapping[int | str, Any],
        labels: Sequence[Any],
    ) -> None:  # fmt: skip
        self.runner, self.given, self.inputs, self.labels = runner, plan, inputs, labels
        last: Any = plan.last if isinstance(plan, StepPlan) else plan
        self.plan = last
        phases = list(plan.phases.values())[:-1] if isinstance(plan, StepPlan) else []
        self.before = {phase.items.phase.name: phase.items for phase in phases}
        self._check_plan()
        self.stages: PipelineStages = self.plan.stages
        rank, devices = runner.rank, runner.num_devices
        mine = self.plan.rank_of_sample == rank
        filled = set(self.plan.slot_of_sample[mine].tolist())
        lists = [self.plan.device_ops(rank, device) for device in range(devices)]
        self.messages = Messages(lists, filled, self.stages.num_stages)
        self.ops = self.messages.lists[runner.device]
        self.rows = self._rows_by_phase()
        self._check_given()
        self._here: dict[Key, Tensor] = {}  # what stays on this device
        self._kept: dict[tuple[Any, ...], tuple[Tensor, list[Tensor]]] = {}  # of forwards, until their backwards
        self._posted: dict[Key, tuple[Any, Tensor]] = {}
        self._sent: list[tuple[Any, Tensor]] = []  # which keeps the tensors
        self._source: dict[Key, int] = {}
        self._coming: dict[int, deque[tuple[int, Key]]] = {}
        for device in range(devices):
            keys = [] if device == runner.device else list(self.messages.between(device, runner.device))
            self._coming[device] = deque(enumerate(keys))
            self._source |= dict.fromkeys(keys, device)
        self._numbers = dict.fromkeys(range(devices), 0)
        # the pieces of each slot's tasks, by what their messages are called
        self._pieces = {
            self.messages.makes(op)[0][0][1:]: op.pieces for tasks in self.messages.tasks.values() for op in tasks
        }

    def digest(self) -> str:
        """SHA-256, in hex, of what all processes must have alike: the plan, and the rows that stages put out."""
        outputs = repr(sorted(map(repr, self.runner.outputs.items())))
        return hashlib.sha256(self.given.digest().encode() + outputs.encode()).hexdigest()

    def _check_plan(self) -> None:
        stages = getattr(self.plan.cut, "stages", None)
        if not isinstance(stages, PipelineStages):
            raise UsageError("the plan has no pipeline stages: plan with cut=Pipelines(tokens, PipelineStages(...))")
        runner = self.runner
        for what, wanted, given in (
            ("devices", runner.num_devices, stages.num_devices), ("stages", runner.num_stages, stages.num_stages),
            ("ranks", runner.num_ranks, self.plan.num_ranks),
        ):  # fmt: skip
            if wanted != given:
                raise ArgumentError("plan", f"have {wanted} {what}, as the processes do", given)

    def _rows_by_phase(self) -> dict[str, np.ndarray]:
        """Return how many rows each slot of this rank has in each piped phase: int64[num_slots]."""
        slot, on = self.plan.slot_of_sample, self.plan.rank_of_sample == self.runner.rank
        found = {}
        for name in self.stages.forward:
            lengths, sample = self.plan.lengths, np.arange(len(slot))
            if name in self.before:
                lengths, sample = self.before[name].outputs, self.before[name].sample_of_item
            mine = on[sample]
            found[name] = np.bincount(slot[sample[mine]], lengths[mine], self.plan.num_slots).astype(np.int64)
        return found

    def _check_given(self) -> None:
        """Raise unless modules, outputs, inputs and labels are those that the ops of this device need."""
        runner, last = self.runner, self.stages.num_stages - 1
        for stage, module in runner.modules.items():
            trains = any(p.requires_grad for p in module.parameters())
            if trains and self.stages.kind_of_backward(stage) != "full":
                raise UsageError(
                    f"the plan has stage {stage} frozen, and its module has parameters that require gradients"
                )
        for op in self.ops:
            for name in sorted({piece.module for piece in op.pieces}):
                if name not in runner.encoders or name not in self.inputs:
                    raise ArgumentError(
                        "encoders", "have a module, and {inputs} the items, of each encoder in gaps", repr(name)
                    )
        need = [*range(last), *sorted({piece.module for tasks in self.messages.tasks.values() for op in tasks
                                       for piece in op.pieces})]  # fmt: skip
        if lacking := [name for name in need if name not in runner.outputs]:
            raise ArgumentError("outputs", "have the shape and dtype of a row of every stage but the last", lacking[0])
        slots = self.plan.num_slots
        if 0 in runner.modules and 0 not in self.inputs:
            raise ArgumentError("inputs", "have those of stage 0", list(self.inputs))
        for stage in runner.modules:
            if stage in self.inputs and len(self.inputs[stage]) != slots:
                raise ArgumentError(
                    f"inputs[{stage}]", f"have an entry for each of {slots} slots", len(self.inputs[stage])
                )
        if last in runner.modules and len(self.labels) != slots:
            raise ArgumentError("labels", f"have an entry for each of {slots} slots", len(self.labels))

    def run(self) -> float:
        """Run all ops of this device; return the sum of the losses."""
        total = 0.0
        for op in self.ops:
            if op.backward:
                self._backward(op)
            elif op.stage is None:
                self._task_forward(op)
            else:
                total += self._forward(op)
        for work, _ in self._sent:
            work.wait()
        return total

    def _forward(self, op: DeviceOp) -> float:
        runner, stage = self.runner, op.stage or 0
        leaves, given = [], []
        for key in self.messages.needs(op):
            leaf = self._receive(key)
            leaves.append(leaf.requires_grad_(self._is_trained(op, key)))
        if stage:
            given.append(leaves[0])
        if stage in self.inputs:
            given.append(self.inputs[stage][op.slot])
        if not stage and self.runner.encoders:
            given.append(self._encoded(op.slot, leaves))
        module = runner.modules[stage]
        with torch.set_grad_enabled(op.kind != "none"):
            out = checkpoint(module, *given, use_reentrant=False) if op.recompute else module(*given)
            if stage == self.stages.num_stages - 1:
                out = runner.loss(out, self.labels[op.slot])
                if op.kind == "full" and not out.requires_grad:
                    raise UsageError(
                        f"{named(op)} puts out a loss that needs no gradient, so that nothing would be trained: the "
                        "plan has the stage trained"
                    )
        if op.kind != "none":
            self._kept[_work_of(op)] = out, leaves
        for key, device in self.messages.makes(op):
            self._check_rows(named(op), out, self._shape(key), runner.outputs[stage][1])
            self._send(key, device, out.detach())
        return float(out.detach()) if stage == self.stages.num_stages - 1 else 0.0

    def _is_trained(self, op: DeviceOp, key: Key) -> bool:
        """Whether a forward's input gets a gradient: its stage, or its task, has a backward."""
        if op.stage:
            return self.stages.kind_of_backward(op.stage - 1) != "none"
        return any(
            self.messages.makes(task)[0][0] == key and task.kind != "none" for task in self.messages.tasks[op.slot]
        )

    def _encoded(self, slot: int, leaves: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return what tasks put out, by encoder: views of their messages, one after the other."""
        found: dict[str, list[Tensor]] = {name: [] for name in self.runner.encoders}
        for task, flat in zip(self.messages.tasks.get(slot, ()), leaves, strict=True):
            at = 0
            for piece in task.pieces:
                shape = (piece.stop - piece.start, *self.runner.outputs[piece.module][0])
                found[piece.module].append(flat[at : at + math.prod(shape)].view(shape))
                at += math.prod(shape)
        empty = {n: torch.zeros((0, *s), dtype=t, device=self.runner.on)
                 for n in found for s, t in (self.runner.outputs[n],)}  # fmt: skip
        return {name: torch.cat([empty[name], *parts]) for name, parts in found.items()}

    def _backward(self, op: DeviceOp) -> None:
        out, leaves = self._kept.pop(_work_of(op))
        needs = self.messages.needs(op)
        gradient = self._receive(needs[0]) if needs else None
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        if out.requires_grad and (op.kind == "full" or wanted):
            # frozen stages make their input's gradient alone
            torch.autograd.backward(out, gradient, inputs=None if op.kind == "full" else wanted)
        for (key, device), leaf in zip(self.messages.makes(op), wanted, strict=True):
            self._send(key, device, torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)

    def _task_forward(self, op: DeviceOp) -> None:
        runner, found = self.runner, []
        ((key, device),) = self.messages.makes(op)
        with torch.set_grad_enabled(op.kind != "none"):
            for piece in op.pieces:
                rows = self.inputs[piece.module][op.sample, piece.item][piece.start : piece.stop]
                out, (shape, dtype) = runner.encoders[piece.module](rows), runner.outputs[piece.module]
                self._check_rows(named(op), out, (piece.stop - piece.start, *shape), dtype)
                found.append(out.reshape(-1))
            flat = torch.cat(found)
        if op.kind != "none":
            self._kept[_work_of(op)] = flat, []
        self._send(key, device, flat.detach().clone())

    def _check_rows(self, where: str, out: Tensor, shape: Iterable[int], dtype: torch.dtype) -> None:
        if tuple(out.shape) != tuple(shape) or out.dtype != dtype:
            raise UsageError(f"{where} must put out {tuple(shape)} of {dtype}, as plan and {{outputs}} say, got "
                             f"{tuple(out.shape)} of {out.dtype}")  # fmt: skip

    def _shape(self, key: Key) -> tuple[int, ...]:
        """Return the shape of a message, which sender and receiver know from the plan."""
        _, slot, stage, _ = key
        if stage < 0:
            pieces = self._pieces[key[1:]]
            each = ((piece.stop - piece.start) * math.prod(self.runner.outputs[piece.module][0]) for piece in pieces)
            return (sum(each),)
        rows = sum(int(self.rows[name][slot]) for name in self.stages.phases_of(stage))
        return (rows, *self.runner.outputs[stage][0])

    def _dtype(self, key: Key) -> torch.dtype:
        stage = key[2]
        return self.runner.outputs[stage if stage >= 0 else self._pieces[key[1:]][0].module][1]

    def _send(self, key: Key, device: int, tensor: Tensor) -> None:
        if device == self.runner.device:
            self._here[key] = tensor
            return
        number, host = self._numbers[device], tensor.contiguous().cpu()
        self._numbers[device] += 1
        if host.numel():
            self._sent.append((self.runner.send(host, device, number), host))

    def _receive(self, key: Key) -> Tensor:
        if key in self._here:
            return self._here.pop(key)
        # Receives begin in the order in which their sender sends, whatever is needed first.
        source = self._source[key]
        while key not in self._posted:
            number, coming = self._coming[source].popleft()
            buffer = torch.empty(self._shape(coming), dtype=self._dtype(coming))
            work = self.runner.receive(buffer, source, number) if buffer.numel() else None
            self._posted[coming] = work, buffer
        work, buffer = self._posted.pop(key)
        if work is not None:
            work.wait()
        return buffer.to(self.runner.on)
