"""How the loop over time runs: the unrolls, their histories and deferred products, and sharding."""
