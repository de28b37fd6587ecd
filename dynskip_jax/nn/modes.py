"""The mode of a module, training or evaluation: `nnx.view` sets it as `.train()` and `.eval()` do."""

from flax import nnx


class HasModes(nnx.Module):
    """A module that draws while it is trained and does not while it is evaluated.

    Attributes:
        deterministic: set by `.train()`, `.eval()` and `nnx.view`.
    """

    deterministic: bool = False

    def set_view(self, deterministic: bool | None = None):
        """Class method used by ``nnx.view``.

        Args:
            deterministic: if True, choices are greedy and nothing is dropped.
        """
        if deterministic is not None:
            self.deterministic = deterministic
