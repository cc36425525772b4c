"""A caller's device meshes: which GPU is which shard of a module, and the process groups of its tensor shards."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import torch.distributed as dist

from balancer.problem.layout import ModuleLayout, StepLayout
from balancer.problem.mesh import Mesh
from balancer.problem.setup import Setup, as_layout

__all__ = ["read_meshes", "tensor_groups"]

_AXES = ("pp", "dp", "cp", "sp", "tp")


def read_meshes(
    layouts: StepLayout | Mapping[str, ModuleLayout | Mesh] | None, meshes: Mapping[str, Any] | None, group: Any
) -> tuple[StepLayout | Mapping[str, ModuleLayout | Mesh] | None, dict[str, Any]]:
    """Return layouts on the GPUs of device meshes, numbered as the ranks of a group, and tensor groups by phase."""
    if not isinstance(meshes, Mapping | None):
        raise TypeError(f"meshes must map phases to a DeviceMesh or ProcessGroup, got {meshes!r}")
    given, groups = dict(meshes or {}), dict[str, Any]()
    as_layout(layouts)  # or it says what they must be
    if given and layouts is None:
        raise ValueError("meshes must come with layouts, which say how a mesh's GPUs share samples")
    modules = dict(layouts.modules if isinstance(layouts, StepLayout) else layouts or {})
    if strange := sorted(set(given) - set(modules), key=repr):
        raise ValueError(f"meshes must be of phases with a layout ({', '.join(modules)}), got {strange[0]!r}")
    found = dict[str, Any]()
    for name, mesh in given.items():
        if isinstance(mesh, dist.ProcessGroup):
            groups[name] = mesh
            continue
        if not getattr(mesh, "mesh_dim_names", None):
            raise TypeError(
                f"meshes[{name!r}] must be a DeviceMesh with names of axes, or a ProcessGroup, got {mesh!r}"
            )
        layout = modules[name]
        found[name] = _mesh_of(name, layout.layout if isinstance(layout, Mesh) else layout, mesh, group)
        if "tp" in mesh.mesh_dim_names:
            groups[name] = mesh.get_group("tp")
    if not found:
        return layouts, groups
    if isinstance(layouts, StepLayout) and layouts.mode != "before":
        raise ValueError(f"layouts with meshes must be of mode 'before', got {layouts.mode!r}")
    return {**modules, **found}, groups


def _mesh_of(name: str, layout: ModuleLayout, mesh: Any, group: Any) -> Mesh:
    """Return the GPUs of a device mesh; ValueError if its axes are not those of the layout."""
    axes = [axis.partition("_")[0] for axis in mesh.mesh_dim_names]  # "dp_shard" is an axis of replicas
    if strange := [axis for axis, kind in zip(mesh.mesh_dim_names, axes, strict=True) if kind not in _AXES]:
        raise ValueError(f"meshes[{name!r}] must have axes {', '.join(_AXES)}, got {strange[0]!r}")
    order = [at for kind in _AXES for at, axis in enumerate(axes) if axis == kind]
    ranks = mesh.mesh.numpy().transpose(order)
    sizes = {kind: int(np.prod([ranks.shape[k] for k, at in enumerate(order) if axes[at] == kind])) for kind in _AXES}
    if sizes != (wanted := {kind: getattr(layout, kind) for kind in _AXES}):
        raise ValueError(f"meshes[{name!r}] must have the sizes of its layout, {wanted}, got {sizes}")
    numbers = {process: gpu for gpu, process in enumerate(dist.get_process_group_ranks(group))}
    gpus = [numbers.get(process, -1) for process in ranks.ravel().tolist()]
    if -1 in gpus:
        raise ValueError(f"meshes[{name!r}] has rank {ranks.ravel()[gpus.index(-1)]}, which is not in dp_group")
    return Mesh.of(layout, np.reshape(gpus, (layout.pp, layout.dp, layout.sequence_shards, layout.tp)))


def tensor_groups(setup: Setup, given: Mapping[str, Any], group: Any, timeout: timedelta) -> dict[str, Any]:
    """Return by phase the tensor group of this rank, made where the caller gives none. All ranks call this.

    ValueError if one that is given is not of the layout's GPUs in their order.
    """
    rank, ranks, found = dist.get_rank(group), dist.get_process_group_ranks(group), dict[str, Any]()
    for name in [] if setup.layout is None else setup.layout.modules:
        mesh = setup.mesh_of(name)
        if mesh.layout.tp == 1:
            continue
        device, replica, shard, _ = mesh.place_of(rank)
        members = [ranks[gpu] for gpu in mesh.gpus[device, replica, shard].tolist()]
        if name not in given:
            # Its members alone take part: no rank waits for groups that it is not in.
            found[name] = dist.new_group(members, timeout=timeout, use_local_synchronization=True)
        elif (there := dist.get_process_group_ranks(given[name])) == members:
            found[name] = given[name]
        else:
            raise ValueError(f"meshes[{name!r}] must have the tensor group of ranks {members}, got {there}")
    return found
