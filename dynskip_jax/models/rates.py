"""Check the rates of a model when it is made, before any of them is used in training."""

from dynskip_jax.errors import UserError


def check_rates(name: str, *rates: float) -> None:
    """Raise a `UserError` unless each of the rates of an argument `name` is in [0, 1)."""
    for rate in rates:
        if not 0.0 <= rate < 1.0:
            raise UserError(f"{name} lies in [0, 1), got {rate}")
