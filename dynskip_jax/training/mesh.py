"""Compile an update for some devices with `jit`, over a mesh or `pmap`, and place its arrays.

A `PartitionSpec` says how an array is divided over two mesh axes: `seeds`, the leading axis of the
training state, and `data`, the batch axis. If the number of seeds is a multiple of the number of
devices, each device trains different seeds. Otherwise each gets a part of every batch, and
gradients are averaged.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from typing_extensions import override

from dynskip_jax.errors import UserError
from dynskip_jax.training.processes import Processes

PyTree = Any
Devices = tuple[jax.Device, ...]
PER_SEED = P("seeds")  # parameters, optimizer state, sums, keys, rates: (seeds, ...)
PER_EXAMPLE = P("seeds", "data")  # the carry: (seeds, batch, ...)


def batch_spec(batch_axis: int | None) -> P:
    """Return how a batch is divided: (seeds, batch, ...) for `batch_axis` 0, or (batch, ...)."""
    return P("data") if batch_axis is None else PER_EXAMPLE


class Parallel:
    """Compile and run the update as one program over a mesh: the compiler divides the arrays.

    `shape` is that of the mesh, (seeds, data); by default one device, which has everything.
    """

    # Mapped axis over which the update has to reduce sums and means; None if it sees whole batches
    # or seeds.
    axis_name: str | None = None

    def __init__(
        self,
        devices: Devices | None = None,
        shape: tuple[int, int] = (1, 1),
        processes: Processes | None = None,
    ):
        self.devices = devices or (jax.devices()[0],)
        self.processes = processes or Processes()
        self.mesh = Mesh(np.array(self.devices).reshape(shape), ("seeds", "data"))
        self._replicate = jax.jit(lambda tree: tree, out_shardings=NamedSharding(self.mesh, P()))

    def compile(
        self, update: Callable[..., Any], in_specs: tuple, out_specs: PyTree
    ) -> Callable[..., Any]:
        """Compile `update` for arguments and results of these specs; the first is donated."""
        ins, outs = jax.tree.map(partial(NamedSharding, self.mesh), (in_specs, out_specs))
        return jax.jit(update, in_shardings=ins, out_shardings=outs, donate_argnums=0)

    def place(self, tree: PyTree, spec: P) -> PyTree:
        """Place whole arrays, which every process holds, as the compiled update takes them."""
        sharding = NamedSharding(self.mesh, spec)
        if self.processes.count == 1:
            return jax.device_put(tree, sharding)
        return jax.tree.map(lambda leaf: _own_share(leaf, sharding), tree)

    def whole(self, tree: PyTree, spec: P = PER_SEED) -> PyTree:
        """Return the update's results as whole arrays, which every process holds."""
        if self.processes.count == 1:
            return tree
        return self._replicate(tree)

    def gather(self, tree: PyTree, spec: P = PER_SEED) -> PyTree:
        """Return results of the update as whole arrays on one device of each process."""
        whole = self.whole(tree, spec)
        if self.processes.count > 1:
            return jax.tree.map(lambda leaf: leaf.addressable_data(0), whole)
        return jax.device_put(whole, self.devices[0])

    def spread(self, tree: PyTree) -> PyTree:
        """Place whole arrays, (seeds, ...), so that each seed is evaluated where it is trained."""
        divides_seeds = self.processes.count == 1 and self.mesh.shape["seeds"] > 1
        if not divides_seeds:
            return tree
        return self.place(tree, PER_SEED)


class Pmap(Parallel):
    """One replica per device, by `jax.pmap`, which JAX maintains but no longer develops.

    The divided axis of an array is split into two axes, (..., devices, share, ...); the first one
    is mapped.
    """

    def __init__(self, devices: Devices, shape: tuple[int, int]):
        super().__init__(devices, shape)
        self._divided = "seeds" if shape[0] > 1 else "data"
        self.axis_name = "data" if self._divided == "data" else None

    def _axis(self, spec: P) -> int | None:
        if self._divided not in spec:
            return None
        return spec.index(self._divided)

    @override
    def compile(
        self, update: Callable[..., Any], in_specs: tuple, out_specs: PyTree
    ) -> Callable[..., Any]:
        return jax.pmap(
            update,
            axis_name=self._divided,
            in_axes=jax.tree.map(self._axis, in_specs),
            out_axes=jax.tree.map(self._axis, out_specs),
            devices=self.devices,
            donate_argnums=0,
        )

    @override
    def place(self, tree: PyTree, spec: P) -> PyTree:
        return self._reshaped(tree, spec, (len(self.devices), -1), 1)

    @override
    def whole(self, tree: PyTree, spec: P = PER_SEED) -> PyTree:
        return self._reshaped(tree, spec, (-1,), 2)

    @override
    def spread(self, tree: PyTree) -> PyTree:
        return tree

    def _reshaped(self, tree: PyTree, spec: P, shape: tuple[int, ...], count: int) -> PyTree:
        """Return arrays whose `count` axes from the divided one on are replaced by `shape`."""
        axis = self._axis(spec)
        if axis is None:
            return tree
        return jax.tree.map(
            lambda leaf: leaf.reshape(*leaf.shape[:axis], *shape, *leaf.shape[axis + count :]), tree
        )


def make_parallel(
    num_devices: int | None = None,
    way: str = "jit",
    *,
    num_seeds: int,
    batch_size: int,
    processes: Processes | None = None,
) -> Parallel:
    """Return the backend that runs the update; all agree up to rounding, noise included.

    The default is one device, or with several processes all of their devices. `batch_size` is the
    number of examples in one update of one model, summed over all devices.
    """
    processes = processes or Processes()
    available = jax.devices()
    if num_devices is None:
        # One process uses one device, several use all of theirs.
        num_devices = 1 if processes.count == 1 else len(available)
    if processes.count > 1 and num_devices != len(available):
        used = f"{processes.count} processes use all {len(available)} devices that they have"
        raise UserError(f"--devices {num_devices}: {used}; leave it out")
    if num_devices > len(available):
        raise UserError(
            f"--devices {num_devices} is more than there are: this machine has {len(available)} "
            f"({available[0].platform})"
        )
    by_seeds = num_seeds % num_devices == 0
    if not by_seeds and batch_size % num_devices:
        raise UserError(
            f"--batch-size {batch_size} cannot be shared by {num_devices} devices: "
            f"choose a multiple of {num_devices}"
        )
    shape = (num_devices, 1) if by_seeds else (1, num_devices)
    devices = tuple(available[:num_devices])
    if way == "pmap":
        return Pmap(devices, shape)
    return Parallel(devices, shape, processes)


def own_examples(count: int, axis_name: str | None) -> jax.Array:
    """Return the index in the whole batch of each of this device's `count` examples, (count,)."""
    examples = jnp.arange(count)
    if axis_name is None:
        return examples
    return jax.lax.axis_index(axis_name) * count + examples


def mean_over(tree: PyTree, axis_name: str | None) -> PyTree:
    """Return the mean over the mapped axis `axis_name`, or `tree` itself if `axis_name` is None."""
    if axis_name is None:
        return tree
    return jax.lax.pmean(tree, axis_name)


def _own_share(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Return a global array from a whole one; each process copies only its own devices' parts."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        wrap = partial(jax.random.wrap_key_data, impl=jax.random.key_impl(leaf))
        data = _own_share(jax.random.key_data(leaf), sharding)
        return jax.jit(wrap, out_shardings=sharding)(data)
    leaf = np.asarray(leaf)
    return jax.make_array_from_process_local_data(sharding, leaf, leaf.shape)
