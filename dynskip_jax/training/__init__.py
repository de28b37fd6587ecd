"""Training: how agents are trained in any model, and the loop of this project's experiments."""

from dynskip_jax.training.objective import AgentObjective, AgentStage

__all__ = ["AgentObjective", "AgentStage"]
