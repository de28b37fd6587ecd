"""The command line's settings of agents: help and bounds of each; importing this imports no JAX."""

import dataclasses
from typing import TYPE_CHECKING, Literal

from dynskip_jax.settings import setting

if TYPE_CHECKING:
    from dynskip_jax.rl import AgentObjective


@dataclasses.dataclass(frozen=True)
class AgentSettings:
    """The settings of `rl.AgentObjective`, with the same names and defaults.

    Settings that can be swept may be tuples of values.
    """

    reward: Literal["log_likelihood", "probability", "correct"] = setting(
        "log_likelihood",
        "What an agent is rewarded with: log_likelihood (the paper) or probability of the truth, or correct: "
        "1 where the prediction is right, else -1 (the released code).",
    )
    rl_coef: float = setting(1.0, "Weight of the agents' loss J_2.", at_least=0)
    entropy_coef: float = setting(
        1.0, "β, weight of the entropy in J_2 (the paper's is 1).", at_least=0, sweep=True
    )
    entropy: Literal["sampled", "exact"] = setting(
        "sampled",
        "sampled: -log π of the actions taken, inside the return (Eq. 5); exact: the entropy of each step's "
        "distribution, differentiated directly, without sampling noise; it leaves out how an action "
        "moves later steps' entropies.",
    )
    discount: float = setting(
        1.0,
        "Of the rewards that follow an action, one for each step (the paper's is 1).",
        at_least=0,
        at_most=1,
    )
    entropy_coef_final: float | None = setting(
        None, "β of the last epoch, reached linearly; by default it stays.", at_least=0
    )
    baseline: Literal["none", "batch", "rollouts", "moving_average", "learned"] = setting(
        "none",
        "Subtracted from the return: none (the paper); batch: the mean return of the other examples; "
        "rollouts: of the other rollouts of the same example (Kool et al. 2019); moving_average: of the "
        "batches before in the epoch (Williams 1992); learned: a critic's V(s(t)).",
    )
    rollouts: int = setting(1, "M, how often the actions of each training example are sampled.", at_least=1)
    estimator: Literal["reinforce", "vimco"] = setting(
        "reinforce",
        "reinforce (the paper), for the mean reward of a sample; vimco, for the likelihood of the averaged "
        "prediction of M samples (Mnih and Rezende 2016), with a baseline of its own.",
    )
    baseline_decay: float = setting(
        0.99, "Of the baseline moving_average, for each batch.", at_least=0, below=1
    )
    relaxation: Literal["none", "soft", "gumbel_softmax", "straight_through", "reinmax"] = setting(
        "none", "How choices are relaxed in the first epochs, in place of the estimator."
    )
    relaxed_epochs: int = setting(0, "For how many epochs they are.", at_least=0)
    relaxed_entropy_coef: float | None = setting(
        None,
        "β in these epochs, of the exact entropy; by default as in the others. Below 0 it makes the policy "
        "certain, so that little changes when choices are no longer relaxed.",
    )
    relaxed_entropy_coef_final: float | None = setting(
        None, "β of the last relaxed epoch, reached linearly; by default it stays."
    )
    temperature: float = setting(1.0, "τ of relaxed choices.", above=0, sweep=True)
    temperature_final: float | None = setting(
        None, "τ of the last relaxed epoch, reached geometrically; by default it stays.", above=0
    )
    update_cost: float = setting(
        0.0,
        "Cost of each word that is read, summed over a sequence, where a skip learns by gradient which to "
        "leave out: λ of Skip RNN (Campos et al. 2018, Eq. 6).",
        at_least=0,
        sweep=True,
    )

    def objective(self) -> "AgentObjective":
        """Return the objective of these settings, with the first value of those that are swept.

        Raises:
            UserError: the settings do not fit each other.
        """
        from dynskip_jax.rl import AgentObjective  # imports JAX

        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(AgentObjective)}
        return AgentObjective(**{n: v[0] if isinstance(v, tuple) else v for n, v in values.items()})
