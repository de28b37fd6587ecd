"""Arguments of cells and layers: rates of dropout, the default policy and PRNG keys."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Array

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.checks import check_keys, check_rates

# Where a call gets PRNG keys. An array is one key, or one for each example.
Rngs = nnx.Rngs | nnx.RngStream | Array | None


def as_rates(rates: Any, count: int) -> tuple[float, ...]:
    """Return rates of dropout or zoneout as Python numbers; repeat a single one `count` times."""
    if np.ndim(rates) == 0:
        rates = (rates,) * count
    # Rates are static, part of compiled programs, so they must be Python numbers.
    rates = tuple(float(rate) for rate in rates)
    check_rates("a rate of dropout or zoneout", *rates)
    return rates


def batch_of(input_shape: Any, in_features: int) -> tuple[int, ...]:
    """Return the batch axes of a carry from Flax's `input_shape`, or from a number of sequences."""
    if np.ndim(input_shape) == 0:
        # Whole numbers of NumPy and symbolic ones of JAX pass, too.
        if not isinstance(input_shape, bool | float):
            return (input_shape,)
    elif tuple(input_shape)[-1:] == (in_features,):
        return tuple(input_shape)[:-1]
    wanted = f"(*batch, {in_features}), the shape of one step's input, or a number of sequences"
    raise UserError(f"expected input_shape to be {wanted}, got {input_shape!r}")


def check_per_layer(count: int, **given: Any) -> None:
    """Check that arguments have an entry for each layer and direction; None passes."""
    for name, values in given.items():
        if values is None:
            continue
        # A single carry is a tuple, too.
        is_list = isinstance(values, tuple | list) and not isinstance(values, F.SkipCarry)
        if not is_list or len(values) != count:
            raise UserError(
                f"expected {name} to be a tuple of {count}, one for each layer and direction"
            )


def refuse(what: str, options: Mapping[str, Any], *names: str) -> None:
    """Raise a `UserError` if an option is given that a module called `what` does not have."""
    for name in names:
        if options.get(name):
            raise UserError(f"{what} has no {name}: leave it out")


def policy_or_default(policy: F.Policy | None, deterministic: bool) -> F.Policy:
    """Return `policy`; by default a greedy one in evaluation and a sampling one in training."""
    if policy is None:
        return F.Policy("greedy" if deterministic else "sample")
    if not isinstance(policy, F.Policy):
        raise UserError(f"policy is a Policy, such as Policy('greedy'), not {policy!r}")
    return policy


def check_rngs(rngs: Any) -> None:
    """Raise a `UserError` unless a module can draw its parameters from `rngs`."""
    if not isinstance(rngs, nnx.Rngs):
        raise UserError(
            f"expected rngs to be an nnx.Rngs, such as nnx.Rngs(0), got {described(rngs)}"
        )


def stream(rngs: Rngs) -> Any:
    """Return the stream `carry` of an `nnx.Rngs`, and anything else as it is."""
    if not isinstance(rngs, nnx.Rngs):
        return rngs
    # Flax's own recurrent layers take their keys from `carry`, too.
    if not hasattr(rngs, "carry"):
        raise UserError(
            "rngs has no stream `carry`: make it with nnx.Rngs(seed) or nnx.Rngs(carry=seed)"
        )
    return rngs.carry


def as_key(rngs: Rngs) -> Array | None:
    """Return `rngs` if it is a key or None, otherwise the next key of its stream (see `stream`)."""
    key = stream(rngs)
    if isinstance(key, nnx.RngStream):
        key = key()
    if key is not None:
        check_keys(key)
    return key


def require_key(rngs: Rngs, what: str) -> Array:
    """Return the PRNG key that `rngs` provides, for a module called `what` that needs one."""
    if rngs is None:
        raise UserError(
            f"{what} draws (choices, dropout, zoneout): pass rngs=, a PRNG key or nnx.Rngs, or "
            "call .eval()"
        )
    return as_key(rngs)
