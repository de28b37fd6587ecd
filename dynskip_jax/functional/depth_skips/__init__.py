"""Skips over depth: what a stacked layer receives from further below. One file for each place it enters."""

from dynskip_jax.errors import UserError
from dynskip_jax.functional.depth_skips.base import DepthSkip, MappingParams
from dynskip_jax.functional.depth_skips.gates import ToGates
from dynskip_jax.functional.depth_skips.highway import Highway, HighwayGateParams
from dynskip_jax.functional.depth_skips.internal import GatedToInternal, ToInternal
from dynskip_jax.functional.depth_skips.output import GatedToOutput, ToOutput
from dynskip_jax.functional.discovery import kinds

DEPTH_SKIPS: dict[str, type[DepthSkip]] = kinds(__name__, DepthSkip)

__all__ = [
    "DEPTH_SKIPS",
    "DepthSkip",
    "GatedToInternal",
    "GatedToOutput",
    "Highway",
    "HighwayGateParams",
    "MappingParams",
    "ToGates",
    "ToInternal",
    "ToOutput",
    "parse_depth_skip",
]


def parse_depth_skip(text: str) -> DepthSkip:
    """Reads the name of a skip over depth, as on the command line.

    Raises:
        UserError: there is no such skip.
    """
    if text not in DEPTH_SKIPS:
        raise UserError(f"unknown skip over depth {text!r}: choose one of {', '.join(DEPTH_SKIPS)}")
    return DEPTH_SKIPS[text]()
