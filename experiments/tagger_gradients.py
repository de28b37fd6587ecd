"""How far back a tagger's gradient reaches: the command `gradients`, Figure 4 of Gui et al. (2019)."""

from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from rich.console import Console
from rich.table import Table

from dynskip_jax.analysis import plots
from dynskip_jax.analysis.gradient_flow import normalized, state_gradient_norms
from dynskip_jax.data.tagger_vocabulary import TokenIds
from dynskip_jax.errors import UserError
from experiments.command_line import Command
from experiments.tagger_settings import GradientFlags
from experiments.trained import Trained, data_of, finished_models, one_of

_AT_ONCE = 100  # sentences


def gradients(command: Command, flags: GradientFlags) -> None:
    """Prints and draws ‖∂L_T/∂h_t‖ over t of the top forward layer of each model of a run.

    L_T is the cross entropy of the tag's score at the T-th word of each sentence of test so long, if the tag
    there is one of train: of a CRF the words' own scores alone.

    Raises:
        UserError: there is no such sentence, or the data is not that of the run.
    """
    models = finished_models(flags.run_dir, command.name)
    first = next(iter(models.values()))
    last, known = flags.steps - 1, {tag: index for index, tag in enumerate(first.vocabulary.tags)}
    sentences = [
        sentence
        for sentence in data_of(first, flags.data).corpus.splits["test"]
        if len(sentence.words) > last and sentence.tags[last] in known
    ]
    if not sentences:
        raise UserError(
            f"no sentence of test has {flags.steps} words, with a tag of train at the last of them: "
            "choose other --steps"
        )
    # All models of a run folder have the same data, and so the same vocabulary.
    tokens = [
        first.vocabulary.encode(sentence.words[: flags.steps], sentence.columns[: flags.steps])
        for sentence in sentences
    ]
    targets = np.array([known[sentence.tags[last]] for sentence in sentences], np.int32)
    shares = {}
    for name, found in models.items():
        trained = one_of(found, flags.of_seed)
        shares[name] = normalized(
            np.concatenate(
                [
                    _norms(trained, tokens[start : start + _AT_ONCE], targets[start : start + _AT_ONCE])
                    for start in range(0, len(tokens), _AT_ONCE)
                ]
            )
        )
    table = Table(
        title=f"‖∂L_T/∂h_t‖ as a share of its sum, T = {flags.steps}, {len(sentences):,} sentences of test",
        title_justify="left",
    )
    table.add_column("t", justify="right")
    for name in shares:
        table.add_column(name, justify="right")
    for step in range(flags.steps):
        table.add_row(str(step + 1), *(f"{share[step]:.2e}" for share in shares.values()))
    Console().print(table)
    path = Path(flags.run_dir) / "plots" / "gradients.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    records = {
        name: [dict(step=step + 1, share_of_gradient=float(value)) for step, value in enumerate(share)]
        for name, share in shares.items()
    }
    title = f"how much of the gradient at step {flags.steps} reaches each h(t)"
    plots.learning_curves(records, "step", ["share_of_gradient"], path, title, log=True)
    print(f"picture: {path}")


def _norms(
    trained: Trained, tokens: Sequence[TokenIds], targets: Int[np.ndarray, " batch"]
) -> Float[Array, "batch time"]:
    """‖∂L_T/∂h_t‖ of sentences of the same length."""
    model, count = trained.model, len(tokens)
    cell = model.stack.cells[-model.stack.num_directions]
    inputs = jax.tree.map(lambda *of_each: jnp.stack(of_each), *tokens)
    keys = jax.random.split(jax.random.key(0), count)
    output = model(inputs, policy=trained.policy, rngs=keys)
    x, _ = output.observations[-model.stack.num_directions]
    w = model.emissions.kernel[...][: cell.hidden_features]

    def last_loss(h: Float[Array, "batch hidden"]) -> Float[Array, " batch"]:
        # What the backward direction adds at step T is a constant: no earlier forward state enters there.
        scores = output.emissions[:, -1] + (h - jax.lax.stop_gradient(h)) @ w
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), targets[:, None], axis=1)[:, 0]

    policy = trained.policy if cell.skip.has_agent else trained.policy.without_agent()
    carry = cell.initialize_carry((count, cell.in_features), rngs=keys)
    return state_gradient_norms(cell.params(), carry, x, cell.recurrence, last_loss, policy=policy)
