"""Check that the compared layers compute the same, and that everybody has as many turns."""

import json

import jax
import numpy as np
import pytest

from benchmarks import layers, recurrence


@pytest.mark.slow
def test_every_layer_has_gradients_and_the_fused_ones_those_of_the_reference():
    results = {}
    for name, make in layers.layers(layers.TINY).items():
        layer = make()
        results[name] = loss, (of_weights, of_x) = jax.jit(layer.gradient)(*layer.arguments)
        assert np.isfinite(loss) and np.abs(of_x).max() > 0, name
        assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(of_weights)), name
    for name, same in (
        ("lstm, reference", "lstm"),
        ("dynamic:k, reference", "dynamic:k"),
    ):
        (loss, (_, of_x)) = results[name]
        (expected, (_, expected_of_x)) = results[same]
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        np.testing.assert_allclose(of_x, expected_of_x, rtol=1e-4, atol=1e-6)


def test_everyone_has_as_many_turns_in_orders_that_change():
    calls = []
    steps = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    values = recurrence.take_turns(steps, 20, least_ms=1e-9)
    assert {name: len(v) for name, v in values.items()} == {"a": 20, "b": 20, "c": 20}
    turns = {"".join(calls[i : i + 3]) for i in range(6, len(calls), 3)}
    assert len(turns) > 3 and all(sorted(turn) == list("abc") for turn in turns)


@pytest.mark.slow
def test_command_line_writes_every_part(tmp_path, monkeypatch):
    caching = jax.config.jax_enable_compilation_cache
    given = [
        "--tiny",
        "--rounds",
        "1",
        "--parts",
        ",".join(recurrence.PARTS),
        "--out",
        str(tmp_path / "a"),
    ]
    monkeypatch.setattr("sys.argv", ["recurrence", *given, "--only", "t,T,2,small"])
    try:
        recurrence.main()
    finally:
        jax.config.update("jax_enable_compilation_cache", caching)
    found = json.loads((tmp_path / "a" / "recurrence.json").read_text(), parse_constant=pytest.fail)
    assert not any("did not run" in note for note in found["notes"])
    assert {row["part"] for row in found["rows"]} == set(recurrence.PARTS)
    assert {row["column"][0] for row in found["rows"]} == set("tT2s")  # not the 64 and 1 of H and B
