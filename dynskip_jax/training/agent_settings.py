"""Define the command line's settings of agents, and their values in each epoch, without importing JAX."""

import dataclasses
from typing import Literal, NamedTuple

from dynskip_jax.errors import UserError
from dynskip_jax.settings import ON, setting
from dynskip_jax.training.model_names import CHOOSING, READING_LESS, REWARDED

_REWARDED = {"model": REWARDED}
_CHOOSING = {"model": CHOOSING}
_RELAXED = ({"relaxed_epochs": ON}, _CHOOSING)


@dataclasses.dataclass(frozen=True)
class AgentSettings:
    """How agents are trained; the defaults are Eq. 3 to 6 of Gui et al. (2019), as printed.

    Settings that can be swept may be tuples of values.
    """

    reward: Literal["log_likelihood", "probability", "correct"] = setting(
        "log_likelihood",
        "What rewards agents: log-likelihood (the paper) or probability of the truth, or 1 and -1 for right "
        "and wrong.",
        needs=_REWARDED,
    )
    rl_coef: float = setting(1.0, "Weight of the agents' loss J_2.", at_least=0, needs=_REWARDED)
    entropy_coef: float = setting(
        1.0,
        "β, weight of the entropy in J_2 (the paper's is 1).",
        at_least=0,
        sweep=True,
        needs=_REWARDED,
    )
    entropy: Literal["sampled", "exact"] = setting(
        "sampled",
        "sampled: -log π of the actions taken, inside the return (Eq. 5); exact: each step's entropy, "
        "differentiated directly.",
        needs=_REWARDED,
    )
    discount: float = setting(
        1.0,
        "Discount of later rewards, per step (the paper's is 1).",
        at_least=0,
        at_most=1,
        needs=_REWARDED,
    )
    entropy_coef_final: float | None = setting(
        None, "β of the last epoch, reached linearly; by default β stays.", at_least=0, needs=_REWARDED
    )
    baseline: Literal["none", "batch", "rollouts", "moving_average", "learned"] = setting(
        "none",
        "Subtract from the return: the mean of the other examples (batch), of the example's other rollouts, "
        "of earlier batches (moving_average), or a learned critic.",
        needs=_REWARDED,
    )
    rollouts: int = setting(
        1, "M, number of samples of each training example's actions.", at_least=1, needs=_REWARDED
    )
    estimator: Literal["reinforce", "vimco"] = setting(
        "reinforce",
        "Gradient estimator: reinforce (the paper), or vimco for the averaged prediction of M samples (Mnih "
        "and Rezende 2016).",
        needs=_REWARDED,
    )
    baseline_decay: float = setting(
        0.99,
        "Decay of the moving average, per batch.",
        at_least=0,
        below=1,
        needs={"baseline": "moving_average"},
    )
    relaxation: Literal["none", "soft", "gumbel_softmax", "straight_through", "reinmax"] = setting(
        "none",
        "Relax choices in the first epochs, in place of the estimator.",
        needs=({"relaxed_epochs": ON}, _CHOOSING),
    )
    relaxed_epochs: int = setting(
        0, "Number of relaxed epochs.", at_least=0, needs=({"relaxation": ON}, _CHOOSING)
    )
    relaxed_entropy_coef: float | None = setting(
        None,
        "β of the exact entropy in relaxed epochs, by default as later; below 0 it sharpens the policy.",
        needs=_RELAXED,
    )
    relaxed_entropy_coef_final: float | None = setting(
        None, "β of the last relaxed epoch, reached linearly; by default β stays.", needs=_RELAXED
    )
    temperature: float = setting(1.0, "τ of relaxed choices.", above=0, sweep=True, needs=_RELAXED)
    temperature_final: float | None = setting(
        None,
        "τ of the last relaxed epoch, reached geometrically; by default τ stays.",
        above=0,
        needs=_RELAXED,
    )
    update_cost: float = setting(
        0.0,
        "Cost of each word read: λ of Skip RNN (Campos et al. 2018, Eq. 6).",
        at_least=0,
        sweep=True,
        needs={"model": READING_LESS},
    )

    def objective(self) -> "AgentSettings":
        """Return these settings only, with the first value of each swept setting.

        Raises:
            UserError: The settings do not fit each other.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(AgentSettings)}
        objective = AgentSettings(**{n: v[0] if isinstance(v, tuple) else v for n, v in values.items()})
        objective.check()
        return objective

    def check(self) -> None:
        """Check that settings with one value each fit each other."""
        if self.baseline == "rollouts" and self.rollouts == 1:
            raise UserError("a baseline from the other rollouts needs at least 2 rollouts, got 1")
        if self.estimator == "vimco":
            if self.rollouts == 1:
                raise UserError("the estimator vimco averages several rollouts: it needs at least 2, got 1")
            if self.baseline not in ("none", "rollouts"):
                raise UserError(f"the estimator vimco has a baseline of its own: leave out {self.baseline!r}")
            if self.reward != "log_likelihood":
                raise UserError(f"the estimator vimco is rewarded with log_likelihood, not {self.reward!r}")
            if self.entropy == "sampled" and max(self.entropy_coef, self.entropy_coef_final or 0.0) > 0:
                raise UserError(
                    "the estimator vimco needs the exact entropy, or an entropy_coef of 0 to the end"
                )
        if self.relaxed_entropy_coef_final is not None and self.relaxed_entropy_coef is None:
            raise UserError("relaxed_entropy_coef_final needs an initial value: give both")
        if self.relaxation == "none" and self.relaxed_epochs > 0:
            raise UserError(
                f"{self.relaxed_epochs} relaxed epochs need a relaxation: choose soft, gumbel_softmax, "
                "straight_through or reinmax"
            )

    def at(self, epoch: int, epochs: int) -> "AgentEpoch":
        """Return the values of `epoch`, from 0, of `epochs`: relaxed choices first, then sampled ones."""
        relaxed = epoch < self.relaxed_epochs
        initial, final, length = self.entropy_coef, self.entropy_coef_final, epochs
        if relaxed and self.relaxed_entropy_coef is not None:
            initial, final = self.relaxed_entropy_coef, self.relaxed_entropy_coef_final
            length = self.relaxed_epochs
        entropy_coef = initial if final is None else initial + (final - initial) * _progress(epoch, length)
        temperature = 1.0  # attention uses τ too: keep it at 1 in other epochs, as in evaluation
        if relaxed:
            ratio = 1.0 if self.temperature_final is None else self.temperature_final / self.temperature
            temperature = self.temperature * ratio ** _progress(epoch, self.relaxed_epochs)
        return AgentEpoch(
            self.relaxation if relaxed else "sample", temperature, entropy_coef, self.update_cost
        )


class AgentEpoch(NamedTuple):
    """Values of the agents' settings in one epoch.

    Attributes:
        mode: Mode of the policy.
        temperature: τ of relaxed choices.
        entropy_coef: β, the weight of the entropy.
        update_cost: Cost of each token that is read.
    """

    mode: str
    temperature: float
    entropy_coef: float
    update_cost: float


def _progress(epoch: int, epochs: int) -> float:
    """Return the progress of training: 0 in the first epoch, 1 in the last epoch and later."""
    return min(epoch / max(epochs - 1, 1), 1.0)
