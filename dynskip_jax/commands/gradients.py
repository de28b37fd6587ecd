"""The command `gradients`: gradient norms of earlier states (Gui et al. 2019, Figure 4)."""

from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from dynskip_jax.analysis import plots
from dynskip_jax.analysis.reading import state_gradient_norms
from dynskip_jax.config.flags import Bounds
from dynskip_jax.errors import UserError
from dynskip_jax.runs.finished import FinishedRun
from dynskip_jax.runs.load import Trained
from dynskip_jax.terminal.console import print_table, say

_AT_ONCE = 100  # sentences in a batch


def gradients(
    run: FinishedRun, data: Path | None = None, steps: Annotated[int, Bounds(2, 100_000)] = 20
) -> None:
    """Show how much of the gradient of the loss at a word reaches each earlier state.

    L_T is the cross entropy of the true tag at the T-th word; with a CRF it uses only the emission
    scores. ‖∂L_T/∂h_t‖ of the top forward layer is averaged over sentences of test, and divided by
    its sum over t.

    Args:
        data: Folder of the run's data; by default where the run found it.
        steps: T: take the loss of the T-th word.
    """
    models = run.models("gradients")
    first = next(iter(models.values()))  # all models of a folder have the same data and vocabulary
    last = steps - 1
    # A tag that train lacks has no score, so no loss.
    known = {tag: index for index, tag in enumerate(first.vocabulary.tags)}
    test = first.data(data).content.splits["test"]
    sentences = [each for each in test if len(each.words) > last and each.tags[last] in known]
    if not sentences:
        raise UserError(
            f"no sentence of test has {steps} words, with a tag of train at the last: "
            "choose other --steps"
        )
    tokens = [
        first.vocabulary.encode(each.words[:steps], each.columns[:steps]) for each in sentences
    ]
    targets = np.array([known[each.tags[last]] for each in sentences], np.int32)
    shares = {}
    curves = {}
    for name, model in models.items():
        starts = range(0, len(tokens), _AT_ONCE)
        # In batches, because the gradient by every state of every sentence is large.
        norms = [_norms(model, tokens[i : i + _AT_ONCE], targets[i : i + _AT_ONCE]) for i in starts]
        mean = np.concatenate(norms).mean(axis=0, dtype=np.float64)
        shares[name] = (mean / mean.sum()).tolist()
        curves[name] = [
            dict(step=t, share_of_gradient=value) for t, value in enumerate(shares[name], 1)
        ]
    title = f"‖∂L_T/∂h_t‖ as a share of its sum, T = {steps}, {len(sentences):,} sentences of test"
    rows = [[str(t + 1), *(f"{share[t]:.2e}" for share in shares.values())] for t in range(steps)]
    print_table(title, ["t", *shares], rows)
    with run.warned():
        path = run.run_dir / "plots" / "gradients.png"
        title = f"how much of the gradient at step {steps} reaches h(t)"
        plots.learning_curves(curves, "step", ["share_of_gradient"], path, title, log=True)
        say(f"picture: {path}")


def _norms(trained: Trained, tokens: Any, targets: np.ndarray) -> jax.Array:
    """Return ‖∂L_T/∂h_t‖, (batch, time), for sentences of length T with these tags at step T."""
    model = trained.model
    keys = jax.random.split(jax.random.key(0), len(tokens))
    cell = model.stack.cells[-model.stack.num_directions]
    inputs = jax.tree.map(lambda *of_each: jnp.stack(of_each), *tokens)
    output = model(inputs, policy=trained.policy, rngs=keys)
    x, _ = output.observations[-model.stack.num_directions]
    w = model.emissions.kernel[...][: cell.hidden_features]

    def last_loss(h):
        # The scores from the backward direction at step T do not depend on earlier forward states.
        scores = output.emissions[:, -1] + (h - jax.lax.stop_gradient(h)) @ w
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), targets[:, None], axis=1)[:, 0]

    policy = trained.policy if cell.skip.has_agent else trained.policy.without_agent()
    carry = cell.initialize_carry((len(tokens), cell.in_features), rngs=keys)
    return state_gradient_norms(cell.params(), carry, x, cell.recurrence, last_loss, policy=policy)
