"""Compare agents on two tasks: how far back the answer is, or which state has it.

    python -m benchmarks.agents --max-skip 32 --task sensors --agents both,content

pointers: the last step says how many steps back the answer is. sensors: at each step one of 12
sensors has one of four values, and the last step asks for the latest value of one of them. Choices
are relaxed in training and greedy in the test. Three seeds are trained at once.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks import report
from dynskip_jax import SkipLSTM
from dynskip_jax import functional as F
from dynskip_jax.config import Count, call
from dynskip_jax.failures import run_main

UNITS = 64
BATCH_SIZE = 128
CHUNK = 100  # steps of one program
SEEDS = (0, 1, 2)


def pointers(key: jax.Array, size: int, max_skip: int) -> tuple[jax.Array, jax.Array]:
    """Return inputs (size, K + 1, 5 + K) and classes; the last step says how far back they are."""
    symbol_key, back_key = jax.random.split(key)
    symbols = jax.random.randint(symbol_key, (size, max_skip + 1), 0, 5)
    back = jax.random.randint(back_key, size, 1, max_skip + 1)
    x = jax.nn.one_hot(symbols.at[:, max_skip].set(4 + back), 5 + max_skip)
    return x, symbols[jnp.arange(size), max_skip - back]


def sensors(key: jax.Array, size: int, max_skip: int) -> tuple[jax.Array, jax.Array]:
    """Return inputs (size, K + 1, 16) and classes; the last step asks for one sensor's value."""
    sensor_key, value_key, place_key = jax.random.split(key, 3)
    rows = jnp.arange(size)
    shape = (size, max_skip + 1)
    names = jax.random.randint(sensor_key, shape, 0, 12)
    values = jax.random.randint(value_key, shape, 0, 4)
    # A sensor that was seen is asked for, and may have been seen again since.
    asked = names[rows, jax.random.randint(place_key, (size,), 0, max_skip)]
    is_asked = names[:, :max_skip] == asked[:, None]
    latest = max_skip - 1 - jnp.argmax(is_asked[:, ::-1], axis=1)
    x = jnp.concatenate([jax.nn.one_hot(names, 12), jax.nn.one_hot(values, 4)], axis=-1)
    question = jnp.concatenate([jax.nn.one_hot(asked, 12), jnp.zeros((size, 4))], axis=-1)
    return x.at[:, max_skip].set(question), values[rows, latest]


TASKS = dict(pointers=(pointers, 5), sensors=(sensors, 4))


def skip_of(agent: str, max_skip: int) -> F.TimeSkip:
    """Return the time skip of an agent, or none for `lstm`."""
    if agent == "lstm":
        return F.Previous()
    return F.Dynamic(max_skip, agent=agent)


def accuracies(skip: F.TimeSkip, draw: Callable, classes: int, steps: int) -> np.ndarray:
    """Train one model for each seed; return their accuracies on 4,096 new rows."""
    width = jax.eval_shape(lambda key: draw(key, 1), jax.random.key(0))[0].shape[-1]
    rule = optax.adam(0.005)
    policy = F.Policy("soft")

    def split(seed: int) -> tuple:
        rnn = SkipLSTM(width, UNITS, skip=skip, rngs=nnx.Rngs(seed))
        model = nnx.Dict(rnn=rnn, head=nnx.Linear(UNITS, classes, rngs=nnx.Rngs(seed)))
        return nnx.split(model, nnx.Param, ...)

    graph, _, rest = split(0)

    def logits(params, x, policy, key):
        model = nnx.merge(graph, params, rest)
        return model.head(model.rnn(x, policy=policy, rngs=key).h[:, -1])

    def train(params, moments, key):
        def step(carry, key):
            params, moments = carry
            x, y = draw(key, BATCH_SIZE)

            def loss(params):
                found = logits(params, x, policy, key)
                return optax.softmax_cross_entropy_with_integer_labels(found, y).mean()

            updates, moments = rule.update(jax.grad(loss)(params), moments, params)
            return (optax.apply_updates(params, updates), moments), None

        return jax.lax.scan(step, (params, moments), jax.random.split(key, CHUNK))[0]

    def test(params, seed):
        x, y = draw(jax.random.key(1_000_000 + seed), 4096)
        found = logits(params, x, F.Policy("greedy"), jax.random.key(0))
        return (found.argmax(-1) == y).mean()

    # Seeds are a leading axis of the whole training state.
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[split(seed)[1] for seed in SEEDS])
    moments = jax.vmap(rule.init)(params)
    train_all = jax.jit(jax.vmap(train))
    keys = jnp.stack([jax.random.split(jax.random.key(seed), steps // CHUNK) for seed in SEEDS])
    for chunk in range(steps // CHUNK):
        params, moments = train_all(params, moments, keys[:, chunk])
    return np.asarray(jax.jit(jax.vmap(test))(params, jnp.array(SEEDS)))


def compare(
    task: Literal["sensors", "pointers"] = "sensors",
    max_skip: Count = 10,
    agents: tuple[Literal["both", "content", "mlp", "lstm"], ...] = (
        "both",
        "content",
        "mlp",
        "lstm",
    ),
    steps: Count = 800,
) -> None:
    """Print the accuracy of each agent in %, mean and standard deviation over three seeds.

    Args:
        task: What the last step says.
        max_skip: K; rows have K + 1 steps.
        agents: Kinds of agents; lstm has none.
        steps: Updates, in hundreds.
    """
    print(report.one_line(report.describe()))
    rows, classes = TASKS[task]
    draw = partial(rows, max_skip=max_skip)
    for agent in agents:
        begun = time.monotonic()
        found = 100 * accuracies(skip_of(agent, max_skip), draw, classes, steps)
        figures = f"{found.mean():.2f} ± {found.std(ddof=1):.2f}"
        print(f"{task}, K = {max_skip}, {agent}: {figures}, {time.monotonic() - begun:.0f} s")


def main() -> None:
    """Run the command line."""
    call(compare, "python -m benchmarks.agents", sys.argv[1:])


if __name__ == "__main__":
    run_main(main)
