"""Define the command line's settings of agents, with help and bounds, without importing JAX."""

import dataclasses
from typing import TYPE_CHECKING, Literal

from dynskip_jax.settings import ON, setting
from dynskip_jax.training.model_names import CHOOSING, READING_LESS, REWARDED

if TYPE_CHECKING:
    from dynskip_jax.rl import AgentObjective

_REWARDED = {"model": REWARDED}
_CHOOSING = {"model": CHOOSING}
_RELAXED = ({"relaxed_epochs": ON}, _CHOOSING)


@dataclasses.dataclass(frozen=True)
class AgentSettings:
    """The settings of `rl.AgentObjective`, with the same names and defaults.

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

    def objective(self) -> "AgentObjective":
        """Return the objective with these settings, and with the first value of each swept setting.

        Raises:
            UserError: If the settings are inconsistent.
        """
        from dynskip_jax.rl import AgentObjective  # imports JAX

        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(AgentObjective)}
        return AgentObjective(**{n: v[0] if isinstance(v, tuple) else v for n, v in values.items()})
