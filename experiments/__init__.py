"""The experiments as commands of a checkout; their code is `dynskip_jax/experiments/`."""
