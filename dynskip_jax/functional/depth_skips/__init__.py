"""Skips over depth: connections to a layer from layers further below in the stack."""

from dynskip_jax.errors import UserError
from dynskip_jax.functional.depth_skips.attention import AttentionToOutput
from dynskip_jax.functional.depth_skips.base import DepthSkip
from dynskip_jax.functional.depth_skips.highway import Highway
from dynskip_jax.functional.depth_skips.mapped import DenseToGates, ToGates, ToInternal, ToOutput

# Names on the command line.
DEPTH_SKIPS: dict[str, DepthSkip] = {
    "gates": ToGates(),
    "internal": ToInternal(),
    "gated_internal": ToInternal(gated=True),
    "output": ToOutput(),
    "gated_output": ToOutput(gated=True),
    "highway": Highway(),
    "dense": DenseToGates(),
    "attention": AttentionToOutput(),
}


def parse_depth_skip(text: str) -> DepthSkip:
    """Return the depth skip with the command-line name `text`."""
    if not isinstance(text, str) or text not in DEPTH_SKIPS:
        raise UserError(f"unknown skip over depth {text!r}: choose one of {', '.join(DEPTH_SKIPS)}")
    return DEPTH_SKIPS[text]
