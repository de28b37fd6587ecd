"""The stored states as an agent by content sees them: compared with a query, and never copied for it.

They are those of one step, or those of all steps at once, which overlap: one product of matrices compares
them all.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

_BLOCK = 64  # steps compared at once, or K


class Slots(NamedTuple):
    """The K states of a buffer.

    Attributes:
        slots: h(t-1), h(t-2), … h(t-K), (*batch, K, hidden).
    """

    slots: Float[Array, "*batch K hidden"]

    @property
    def dtype(self) -> Any:
        """Of the states."""
        return self.slots.dtype

    @property
    def newest(self) -> Float[Array, "*batch hidden"]:
        """h(t-1)."""
        return self.slots[..., 0, :]

    def compare(self, query: Float[Array, "*batch hidden"]) -> Float[Array, "*batch K"]:
        """Returns q · h(t-k) for each k."""
        return jnp.sum(query[..., None, :] * self.slots, axis=-1)


class Rows(NamedTuple):
    """The K states before a step as rows of a history.

    Attributes:
        rows: h(t-K), … h(t-1), (batch, K, hidden).
    """

    rows: Float[Array, "batch K hidden"]

    @property
    def dtype(self) -> Any:
        """Of the states."""
        return self.rows.dtype

    @property
    def newest(self) -> Float[Array, "batch hidden"]:
        """h(t-1)."""
        return self.rows[:, -1]

    def compare(self, query: Float[Array, "batch hidden"]) -> Float[Array, "batch K"]:
        """Returns q · h(t-k) for each k."""
        products = jnp.einsum("bh,bkh->bk", query, self.rows, precision=jax.lax.Precision.HIGHEST)
        return jnp.flip(products, axis=1)


@partial(jax.tree_util.register_dataclass, data_fields=("rows",), meta_fields=("max_skip",))
@dataclasses.dataclass(frozen=True)
class History:
    """The K states before each of several steps.

    Attributes:
        rows: the K states before the first step and those of all steps but the last, the oldest first,
            (batch, K + time - 1, hidden).
        max_skip: K.
    """

    rows: Float[Array, "batch rows hidden"]
    max_skip: int

    @property
    def dtype(self) -> Any:
        """Of the states."""
        return self.rows.dtype

    @property
    def newest(self) -> Float[Array, "batch time hidden"]:
        """h(t-1)."""
        return self.rows[:, self.max_skip - 1 :]

    def compare(self, query: Float[Array, "batch time hidden"]) -> Float[Array, "batch time K"]:
        """Returns q(t) · h(t-k) for each step and k."""
        (batch, time, hidden), K = query.shape, self.max_skip
        block = max(K, _BLOCK)
        if time <= 2 * block:
            return _band(query, self.rows, K)
        # In blocks of steps, each with its rows and the next one's, memory grows as time, not as its square.
        count = -(-time // block)
        query = jnp.pad(query, ((0, 0), (0, count * block - time), (0, 0)))
        rows = jnp.pad(self.rows, ((0, 0), (0, (count + 1) * block - self.rows.shape[1]), (0, 0)))
        rows = rows.reshape(batch, count + 1, block, hidden)
        rows = jnp.concatenate([rows[:, :-1], rows[:, 1:]], axis=2)[:, :, : K + block - 1]
        of_blocks = (batch * count, -1, hidden)
        products = _band(query.reshape(of_blocks), rows.reshape(of_blocks), K)
        return products.reshape(batch, count * block, K)[:, :time]


def _band(
    query: Float[Array, "batch time hidden"], rows: Float[Array, "batch rows hidden"], K: int
) -> Float[Array, "batch time K"]:
    """Of each query and the K rows before its step the products, the newest first."""
    batch, time = query.shape[:2]
    # Every query meets every row; of these the K rows before its step are kept, a band that begins one
    # further at each step: rows that are one longer put it into columns, and nothing is gathered.
    products = jnp.einsum("bth,brh->btr", query, rows, precision=jax.lax.Precision.HIGHEST)
    flat = jnp.pad(products.reshape(batch, -1), ((0, 0), (0, time)))
    return jnp.flip(flat.reshape(batch, time, -1)[..., :K], axis=-1)


Stored = Slots | Rows | History


def oldest_first(
    slots: Float[Array, "batch K hidden"], first: Bool[Array, " batch"] | None
) -> Float[Array, "batch K hidden"]:
    """Returns the buffer turned round, (batch, K, hidden), as it stands behind the first step.

    Args:
        slots: the buffer of a carry, the newest state first.
        first: where the state that enters the first step is forgotten after it (`TimeSkip.forgets_carried`),
            (batch,): the oldest one has its place. None for nowhere.
    """
    if first is not None and slots.shape[1] > 1:
        slots = slots.at[:, 0].set(jnp.where(first[:, None], slots[:, -1], slots[:, 0]))
    return jnp.flip(slots, axis=1)


def observed_in(history: Float[Array, "batch rows hidden"], kind: str, max_skip: int, time: int) -> Any:
    """Returns what the choices of several steps observe.

    Args:
        history: the K states before the first step, then those of the steps, the oldest first; at least
            K + time - 1 rows.
        kind: `TimeSkip.observed`.
        max_skip: K.
        time: how many steps.

    Returns:
        (batch, time, hidden); (batch, time, K, hidden), the newest first; or `History`.
    """
    K = max_skip
    if kind == "stored":
        return History(history[:, : K - 1 + time], K)
    if kind == "previous":
        return history[:, K - 1 : K - 1 + time]
    rows = jnp.arange(time)[:, None] + jnp.arange(K)[None, ::-1]
    windows = history[:, rows]
    return windows.mean(axis=2) if kind == "mean" else windows
