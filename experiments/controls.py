"""Controls: what stands in the place of a learnt choice, so that it can be said what the choice is worth."""

import re

import numpy as np

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.runs.results import rows_of
from dynskip_jax.runs.trained import finished_runs

_SHARE = re.compile(r"dev_agent_share_\d+")  # of a layer, as its agent chooses on dev


def controlled(skip: F.TimeSkip, control: str, rates: tuple[float, ...] | None) -> F.TimeSkip:
    """Returns what a control puts in the place of a dynamic skip; other skips are returned as they are.

    Args:
        skip: of a model.
        control: `untrained` changes how the agent is trained, and hence nothing here; see `settings.Agent`.
        rates: of `histogram`.
    """
    if not isinstance(skip, F.Dynamic):
        return skip
    alike = dict(max_skip=skip.max_skip, mix=skip.mix, first_step=skip.first_step)
    if control == "histogram":
        return F.Random(**alike, rates=rates)
    return F.Mean(**alike) if control == "mean" else skip


def learnt_rates(run_dir: str, experiment: str) -> tuple[float, ...]:
    """Returns how often the agents of a finished run chose each k on dev, a mean over seeds and layers.

    Args:
        run_dir: of the run.
        experiment: which it has to be a run of.

    Raises:
        UserError: the run has not finished, or has no agent, or several models with one, or is of another
            experiment.
    """
    found = {}
    for model, run in finished_runs(run_dir, experiment).items():
        metrics = rows_of(run.result())[0]["metrics"]
        shares = [of["mean"] for name, of in metrics.items() if _SHARE.fullmatch(name)]
        if shares:
            found[model] = np.mean(shares, axis=0)
    if len(found) != 1:
        having = f"agents in {', '.join(found)}" if found else "no agent"
        raise UserError(f"--control-of takes a run of one model with an agent; {run_dir} has {having}")
    return tuple(round(float(rate), 6) for rate in next(iter(found.values())))
