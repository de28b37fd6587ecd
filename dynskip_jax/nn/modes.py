"""Base class of modules with a training and an evaluation mode."""

from flax import nnx


class HasModes(nnx.Module):
    """A module whose choices and dropout depend on its mode: training or evaluation.

    Attributes:
        deterministic: Whether the module is in evaluation mode. Set by `.train()`, `.eval()` and `nnx.view`.
    """

    deterministic: bool = False

    def set_view(self, deterministic: bool | None = None):
        """Set the mode; `nnx.view` calls this method.

        Args:
            deterministic: If True, choices are greedy and nothing is dropped. None keeps the mode.
        """
        if deterministic is not None:
            self.deterministic = deterministic
