"""Check the script that writes traced programs, with which a refactoring is compared."""

import jax
import jax.numpy as jnp
from jaxprs import lines, write


def test_a_program_is_written_without_names(tmp_path):
    assert write(tmp_path, "^rows previous gru False$") == 1
    text = (tmp_path / "rows-previous-gru-false.txt").read_text(encoding="utf-8")
    assert "scan[" in text and "name=" not in text


def test_programs_differ_by_their_arithmetic_and_not_by_their_names():
    def traced(name, function):
        function.__name__ = name
        return list(
            lines(jax.make_jaxpr(lambda x: jax.jit(function)(jax.jit(function)(x)))(jnp.ones(3)))
        )

    short = traced("f", lambda x: 2 * jnp.sin(x))
    assert short == traced("another", lambda x: 2 * jnp.sin(x))
    assert short != traced("f", lambda x: 2 * jnp.cos(x))
