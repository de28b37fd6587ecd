"""Arguments of cells and layers: rates of dropout, the default policy and PRNG keys."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Array

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.checks import check_rates
from dynskip_jax.functional.keys import check_keys

Rngs = nnx.Rngs | nnx.RngStream | Array | None


def as_rates(rates: Any, count: int) -> tuple[float, ...]:
    """Return rates of dropout or zoneout as Python numbers; one number is repeated `count`
    times.
    """
    rates = tuple(float(rate) for rate in ((rates,) * count if np.ndim(rates) == 0 else rates))
    check_rates("a rate of dropout or zoneout", *rates)
    return rates


def batch_of(input_shape: Any, in_features: int) -> tuple[int, ...]:
    """Return the batch axes of a carry from Flax's `input_shape`, or from a number of sequences."""
    if np.ndim(input_shape) == 0 and not isinstance(input_shape, bool | float):
        return (input_shape,)
    shape = (input_shape,) if np.ndim(input_shape) == 0 else tuple(input_shape)
    if shape[-1:] != (in_features,) or isinstance(input_shape, bool | float):
        wanted = f"(*batch, {in_features}), the shape of one step's input, or a number of sequences"
        raise UserError(f"expected input_shape to be {wanted}, got {input_shape!r}")
    return shape[:-1]


def check_per_layer(count: int, **given: Any) -> None:
    """Check that arguments have an entry for each layer and direction; None passes."""
    for name, values in given.items():
        if values is None:
            continue
        if not isinstance(values, tuple | list) or isinstance(values, F.SkipCarry):
            raise UserError(f"{name} is a tuple, one for each layer and direction")
        if len(values) != count:
            raise UserError(
                f"{count} layers and directions need as many of {name}, got {len(values)}"
            )


def refuse(what: str, options: Mapping[str, Any], *names: str) -> None:
    """Raise a `UserError` if one of these options, which a module called `what` cannot honour, is
    given.
    """
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
    """Raise a `UserError` unless `rngs` are the streams from which a module draws its
    parameters.
    """
    if not isinstance(rngs, nnx.Rngs):
        raise UserError(
            f"expected rngs to be an nnx.Rngs, such as nnx.Rngs(0), got {described(rngs)}"
        )


def stream(rngs: Rngs) -> Any:
    """Return the stream `carry` of an `nnx.Rngs`, and anything else as it is."""
    if not isinstance(rngs, nnx.Rngs):
        return rngs
    if not hasattr(rngs, "carry"):
        raise UserError(
            "rngs has no stream `carry`: make it with nnx.Rngs(seed) or nnx.Rngs(carry=seed)"
        )
    return rngs.carry


def as_key(rngs: Rngs) -> Array | None:
    """Return `rngs` if it is a key or None, otherwise the next key of a stream (`carry` of an
    `nnx.Rngs`).
    """
    rngs = stream(rngs)
    key = rngs() if isinstance(rngs, nnx.RngStream) else rngs
    if key is not None:
        check_keys(key)
    return key


def require_key(rngs: Rngs, what: str) -> Array:
    """Return the PRNG key that `rngs` provides, for a module called `what` that cannot do
    without.
    """
    if rngs is None:
        raise UserError(
            f"{what} draws (choices, dropout, zoneout): pass rngs=, a PRNG key or nnx.Rngs. After .eval() "
            "only F.Random and a policy that samples draw, and they always need it"
        )
    return as_key(rngs)
