"""The command `gradients`: gradient norms of a tagger's earlier states, as in Gui et al. (2019), Figure 4."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.command_line import Subcommand
from dynskip_jax.experiments.commands.flags import RunFlags
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import path_setting, setting

if TYPE_CHECKING:
    from jaxtyping import Array

    from dynskip_jax.data.vocabularies import TokenIds
    from dynskip_jax.experiments.experiment import Experiment
    from dynskip_jax.experiments.loaded import LoadedModel

consoles = LazyModule("dynskip_jax.experiments.console")
plots = LazyModule("dynskip_jax.analysis.plots")
reading = LazyModule("dynskip_jax.analysis.reading")
jax = LazyModule("jax")
jnp = LazyModule("jax.numpy")
loading = LazyModule("dynskip_jax.experiments.loaded")
rich_table = LazyModule("rich.table")
tagger_vocabulary = LazyModule("dynskip_jax.data.vocabularies")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientFlags(RunFlags):
    """Flags of `gradients`."""

    data: str | None = path_setting(None, "Folder of the run's data; by default where the run found it.")
    steps: int = setting(20, "T: take the loss of the T-th word.", at_least=2)


_AT_ONCE = 100  # sentences in a batch


def gradients(experiment: type[Experiment], flags: GradientFlags) -> None:
    """Print and draw ‖∂L_T/∂h_t‖ over t for the top forward layer of each model of a run.

    L_T is the cross entropy of the true tag at the T-th word. With a CRF it uses only the emission scores.
    The norms are averaged over the sentences of test that have at least T words, and whose tag at word T
    occurs in train. They are divided by their sum over t.

    Args:
        experiment: The experiment of the run.
        flags: Flags of the command.

    Raises:
        UserError: There is no such sentence, or the data is not that of the run.
    """
    models = loading.finished_models(flags.run_dir, experiment.name)
    first = next(iter(models.values()))
    last, known = flags.steps - 1, {tag: index for index, tag in enumerate(first.vocabulary.tags)}
    sentences = [
        sentence
        for sentence in loading.data_of(first, flags.data).corpus.splits["test"]
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
        trained = loading.one_of(found, flags.of_seed)
        norms = [
            _norms(trained, tokens[start : start + _AT_ONCE], targets[start : start + _AT_ONCE])
            for start in range(0, len(tokens), _AT_ONCE)
        ]
        mean = np.concatenate(norms).mean(axis=0, dtype=np.float64)
        shares[name] = mean / mean.sum()
    table = rich_table.Table(
        title=f"‖∂L_T/∂h_t‖ as a share of its sum, T = {flags.steps}, {len(sentences):,} sentences of test",
        title_justify="left",
    )
    table.add_column("t", justify="right")
    for name in shares:
        table.add_column(name, justify="right")
    for step in range(flags.steps):
        table.add_row(str(step + 1), *(f"{share[step]:.2e}" for share in shares.values()))
    consoles.PlainConsole().print(table)
    path = Path(flags.run_dir) / "plots" / "gradients.png"
    records = {
        name: [dict(step=step + 1, share_of_gradient=float(value)) for step, value in enumerate(share)]
        for name, share in shares.items()
    }
    title = f"how much of the gradient at step {flags.steps} reaches each h(t)"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        plots.learning_curves(records, "step", ["share_of_gradient"], path, title, log=True)
    except OSError as error:  # such as a read-only folder or a full disk
        consoles.say(f"warning: no picture can be written into {path.parent} ({error.strerror or error})")
    else:
        consoles.say(f"picture: {path}")


def _norms(
    trained: LoadedModel,
    tokens: Sequence[TokenIds],
    targets: Int[np.ndarray, " batch"],
) -> Float[Array, "batch time"]:
    """Return ‖∂L_T/∂h_t‖ for a batch of sentences of the same length T.

    Args:
        trained: A trained tagger.
        tokens: Token ids of each sentence.
        targets: Id of the true tag at step T of each sentence.
    """
    model, count = trained.model, len(tokens)
    cell = model.stack.cells[-model.stack.num_directions]
    inputs = jax.tree.map(lambda *of_each: jnp.stack(of_each), *tokens)
    keys = jax.random.split(jax.random.key(0), count)
    output = model(inputs, policy=trained.policy, rngs=keys)
    x, _ = output.observations[-model.stack.num_directions]
    w = model.emissions.kernel[...][: cell.hidden_features]

    def last_loss(h: Float[Array, "batch hidden"]) -> Float[Array, " batch"]:
        # The scores from the backward direction at step T do not depend on earlier forward states.
        scores = output.emissions[:, -1] + (h - jax.lax.stop_gradient(h)) @ w
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), targets[:, None], axis=1)[:, 0]

    policy = trained.policy if cell.skip.has_agent else trained.policy.without_agent()
    carry = cell.initialize_carry((count, cell.in_features), rngs=keys)
    return reading.state_gradient_norms(cell.params(), carry, x, cell.recurrence, last_loss, policy=policy)


GRADIENTS = Subcommand(
    "Show how much of the gradient of the loss at a word reaches each earlier state.",
    GradientFlags,
    gradients,
)
