"""Skips over depth: connections to a layer from layers further below in the stack."""

from dynskip_jax.errors import UserError
from dynskip_jax.functional.depth_skips.attention import AttentionParams, AttentionToOutput
from dynskip_jax.functional.depth_skips.base import DepthSkip
from dynskip_jax.functional.depth_skips.dense import DenseToGates
from dynskip_jax.functional.depth_skips.highway import Highway, HighwayGateInputs, HighwayGateParams
from dynskip_jax.functional.depth_skips.mapped import (
    GatedToInternal,
    GatedToOutput,
    GatesParams,
    MappingInputs,
    MappingParams,
    ToGates,
    ToInternal,
    ToOutput,
)

_KINDS = (ToGates, ToInternal, GatedToInternal, ToOutput, GatedToOutput, Highway)
_KINDS += (DenseToGates, AttentionToOutput)
DEPTH_SKIPS: dict[str, type[DepthSkip]] = {kind.name: kind for kind in _KINDS}

__all__ = [
    "DEPTH_SKIPS",
    "AttentionParams",
    "AttentionToOutput",
    "DenseToGates",
    "DepthSkip",
    "GatedToInternal",
    "GatedToOutput",
    "GatesParams",
    "Highway",
    "HighwayGateInputs",
    "HighwayGateParams",
    "MappingInputs",
    "MappingParams",
    "ToGates",
    "ToInternal",
    "ToOutput",
    "parse_depth_skip",
]


def parse_depth_skip(text: str) -> DepthSkip:
    """Return the depth skip with the command-line name `text`, with its default options.

    Raises:
        UserError: The name is unknown.
    """
    if text not in DEPTH_SKIPS:
        raise UserError(f"unknown skip over depth {text!r}: choose one of {', '.join(DEPTH_SKIPS)}")
    return DEPTH_SKIPS[text]()
