"""Check that the layers of the comparison compute the same, and that everybody is measured alike."""

import json

import jax
import numpy as np
import pytest

from benchmarks import layers, recurrence, training_step
from benchmarks.recurrence import Measured, Step


@pytest.mark.slow
def test_every_layer_has_gradients_and_flax_computes_our_lstm():
    results = {}
    for name, make in layers.layers(layers.TINY).items():
        layer = make()
        results[name] = loss, (of_weights, of_x) = jax.jit(layer.gradient)(*layer.arguments)
        assert np.isfinite(loss) and np.abs(of_x).max() > 0, name
        assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(of_weights)), name
    for name, same in (
        ("Flax RNN", "lstm"),
        ("lstm, reference", "lstm"),
        ("dynamic:k, reference", "dynamic:k"),
    ):
        (loss, (_, of_x)), (expected, (_, expected_of_x)) = results[name], results[same]
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        np.testing.assert_allclose(of_x, expected_of_x, rtol=1e-4, atol=1e-6)


def test_on_a_gpu_cudnn_takes_part(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert "lstm, cuDNN" in layers.layers(layers.TINY)


def test_everyone_has_as_many_turns_in_orders_that_change():
    calls = []
    steps = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    values = recurrence.take_turns(steps, 20, least_ms=1e-9)
    assert {name: len(v) for name, v in values.items()} == {"a": 20, "b": 20, "c": 20}
    turns = ["".join(calls[i : i + 3]) for i in range(6, len(calls), 3)]
    assert len(turns) == 20 and all(sorted(turn) == list("abc") for turn in turns)
    assert len(set(turns)) > 3


def test_one_that_fails_is_named_and_the_others_go_on():
    def fail(*message):
        raise MemoryError(*message)

    candidates = {
        "good": lambda: Step(lambda: None),
        "bad": lambda: Step(lambda: fail("too much\nof it")),
        "worse": lambda: Step(fail),
    }
    measured, failed = recurrence.measure(candidates, 2)
    assert list(measured) == ["good"]
    assert failed == {"bad": "MemoryError: too much", "worse": "MemoryError"}


def test_tables_take_ratios_turn_by_turn_and_leave_blank_what_did_not_run():
    lstm = Measured(np.array([1.0, 10.0, 2.0]), None, 0.5)
    dynamic = Measured(np.array([2.0, 40.0, 6.0]), 12345.6, 0.25)
    text = recurrence.tables("T", {"2": {"lstm": lstm, "dynamic:k": dynamic}, "3": {"dynamic:k": dynamic}})
    assert "| dynamic:k | 6.00 | 6.00 |" in text
    assert "| dynamic:k | 3.00 (2.50–3.50) |  |" in text
    assert "| dynamic:k | 12,346 | 12,346 |" in text
    assert "| lstm | 0.500 |  |" in text


@pytest.mark.slow
def test_command_line_writes_every_part(tmp_path, monkeypatch, capsys):
    caching = jax.config.jax_enable_compilation_cache
    given = ["--tiny", "--rounds", "1", "--parts", ",".join(recurrence.PARTS), "--out", str(tmp_path / "a")]
    monkeypatch.setattr("sys.argv", ["recurrence", *given])
    try:
        recurrence.main()
    finally:
        jax.config.update("jax_enable_compilation_cache", caching)
    found = json.loads((tmp_path / "a" / "recurrence.json").read_text(), parse_constant=pytest.fail)
    assert not any("did not run" in note for note in found["notes"])
    assert {row["part"] for row in found["rows"]} == set(recurrence.PARTS)
    assert {row["candidate"] for row in found["rows"] if row["part"] == "training"} == set(
        training_step.MODELS
    )
    printed = capsys.readouterr().out
    assert (tmp_path / "a" / "recurrence.md").read_text().strip().splitlines()[-1] in printed
