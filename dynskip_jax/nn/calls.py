"""What cells and layers do with the arguments of a call: checks, a policy by default, keys."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.keys import check_keys

Rngs = nnx.Rngs | nnx.RngStream | Array | None


def check_inputs(inputs: Any, in_features: int, shape: str, axes: int) -> None:
    """Check that inputs are floats of the right size.

    Args:
        inputs: the argument.
        in_features: expected size of the last axis.
        shape: expected shape, for the message, such as `(*batch, time, in)`.
        axes: smallest number of axes.

    Raises:
        UserError: they are not.
    """
    expected = shape.replace("in)", f"{in_features})")
    found = described(inputs)
    if not hasattr(inputs, "dtype"):
        raise UserError(f"expected inputs {expected}, got {found}")
    if not jnp.issubdtype(inputs.dtype, jnp.floating):
        raise UserError(f"expected inputs {expected} of floats, got {found}: embed tokens first")
    if inputs.ndim < axes or inputs.shape[-1] != in_features:
        raise UserError(f"expected inputs {expected}, got {found}")


def policy_or_default(policy: F.Policy | None, deterministic: bool) -> F.Policy:
    """Return the policy; by default it is greedy in evaluation and samples in training."""
    if policy is None:
        return F.Policy("greedy" if deterministic else "sample")
    if not isinstance(policy, F.Policy):
        raise UserError(f"policy is a Policy, such as Policy('greedy'), not {policy!r}")
    return policy


def as_key(rngs: Rngs) -> Array | None:
    """Return the next key of a stream (of an `nnx.Rngs`: `carry`), a key as it is, or None for None.

    Raises:
        UserError: `rngs` is none of these.
    """
    if isinstance(rngs, nnx.Rngs):
        rngs = rngs.carry
    key = rngs() if isinstance(rngs, nnx.RngStream) else rngs
    if key is not None:
        check_keys(key)
    return key


def require_key(rngs: Rngs, what: str) -> Array:
    """Return a key as `as_key` does, for a module that cannot do without.

    Args:
        rngs: the argument of the call.
        what: the module, for the message, such as `this layer`.

    Raises:
        UserError: there is none.
    """
    if rngs is None:
        raise UserError(
            f"{what} draws (choices, dropout, zoneout): pass rngs=, a PRNG key or nnx.Rngs, or call .eval(), "
            "after which only random skips and a policy that samples draw"
        )
    return as_key(rngs)
