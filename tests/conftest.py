"""Strict settings for every test: shapes checked, no silent rank promotion, several devices."""

import os

# Before JAX starts: eight virtual devices, so that code which shards is tested on any machine.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "agg")

import jax
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")

# Checks every annotated shape and dtype of the library at run time.
install_import_hook("dynskip_jax", "beartype.beartype")
