"""Write the traced programs of the fused unroll, to compare a refactoring with `diff -r`.

    PYTHONPATH=.:tests python tests/functional/jaxprs.py FOLDER [--match REGEX]

Run it in two checkouts with two folders. Equal folders mean equal arithmetic: each file is the
value and the gradient of one case of `test_fused.py` or `test_rows.py`, traced in double precision,
without names of functions and variables. Nothing is compiled.
"""

import argparse
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import test_fused
import test_rows
from compiled import on_device
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from recurrences import DEPTH_SKIPS, LENGTHS, TIME, TIME_SKIPS, TRANSITIONS, differentiated, problem

from dynskip_jax import functional as F

# Parameters of an equation that name the Python function from which it came.
NAMES = {"name", "debug_info", "bwd", "fwd_jaxpr_thunk", "jvp_jaxpr_fun"}


def lines(program: Any, indent: str = "") -> Iterator[str]:
    """Yield one line for each equation of a program, without names. Each subprogram numbers its
    variables.
    """
    closed = isinstance(program, ClosedJaxpr)
    jaxpr = program.jaxpr if closed else program
    numbers: dict[Any, int] = {}

    def text(variable: Any) -> str:
        if isinstance(variable, Literal):
            return constant(variable.val)
        return f"v{numbers.setdefault(variable, len(numbers))}:{variable.aval}"

    def texts(variables: Iterable[Any]) -> str:
        return " ".join(map(text, variables))

    yield f"{indent}lambda {texts(jaxpr.constvars)}; {texts(jaxpr.invars)}"
    if closed and program.consts:
        yield f"{indent}  constants {' '.join(map(constant, program.consts))}"
    for equation in jaxpr.eqns:
        operands = texts(equation.invars)
        plain, programs = [], []
        for key, value in sorted(equation.params.items()):
            parts = value if isinstance(value, tuple | list) else (value,)
            if parts and all(isinstance(part, Jaxpr | ClosedJaxpr) for part in parts):
                programs += parts
            elif key not in NAMES and not callable(value):
                plain.append(f"{key}={value}")
        results = texts(equation.outvars)
        yield f"{indent}  {results} = {equation.primitive}[{' '.join(plain)}] {operands}"
        for part in programs:
            yield from lines(part, indent + "    ")
    yield f"{indent}  return {texts(jaxpr.outvars)}"


def constant(value: Any) -> str:
    """Return the type of a constant, and a digest of its numbers; a PRNG key has only its type."""
    if jax.dtypes.issubdtype(jax.typeof(value).dtype, jax.dtypes.prng_key):
        return str(jax.typeof(value))
    digest = hashlib.sha256(np.asarray(value).tobytes()).hexdigest()
    return f"{digest[:12]}:{jax.typeof(value)}"


def cases() -> Iterator[tuple[str, F.Recurrence, dict]]:
    """Yield the name of each case, its layer, and the options of `problem` and `differentiated`."""
    for transition, time_skip, depth_skip, reverse in test_fused.CASES:
        recurrence = F.Recurrence(
            TIME_SKIPS[time_skip], TRANSITIONS[transition], DEPTH_SKIPS[depth_skip]
        )
        name = f"pair {transition} {time_skip} {depth_skip} {reverse}"
        yield name, recurrence, dict(seq_lengths=np.array(LENGTHS), reverse=reverse)
    for name, (recurrence, options) in test_fused.SAME.items():
        yield name, recurrence, options
    for time_skip, transition, reverse in test_rows.CASES:
        recurrence = F.Recurrence(TIME_SKIPS[time_skip], TRANSITIONS[transition])
        options = dict(segment_ids=test_fused.IDS, reverse=reverse, policy=F.Policy("greedy"))
        yield f"rows {time_skip} {transition} {reverse}", recurrence, options


def traced(recurrence: F.Recurrence, options: dict) -> str:
    """Return the text of the program of the value and the gradient of one case."""
    options = dict(options)
    with jax.enable_x64(True):
        params, carry, x, below = problem(recurrence, steps=options.pop("steps", 0))
        carry = carry._replace(recurrent_mask=on_device(options.pop("recurrent_mask", None)))
        x = x[:, : options.pop("time", TIME)]
        function, arguments = differentiated(
            "fused", recurrence, params, carry, x, below, **options
        )
        return "\n".join(lines(jax.make_jaxpr(function)(*arguments))) + "\n"


def write(folder: Path, match: str = "") -> int:
    """Write the program of each case whose name contains `match` into `folder`; return how many
    there are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for name, recurrence, options in cases():
        if re.search(match, name):
            path = folder / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.txt"
            path.write_text(traced(recurrence, options), encoding="utf-8")
            count += 1
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--match", default="", help="write only cases whose name matches this expression"
    )
    arguments = parser.parse_args()
    print(f"{write(arguments.folder, arguments.match)} programs in {arguments.folder}")
