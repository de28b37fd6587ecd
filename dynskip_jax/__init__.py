"""Skip-connected recurrent networks in JAX and Flax NNX."""
