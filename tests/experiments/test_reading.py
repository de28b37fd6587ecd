"""Check how input lines and raw texts are read, and which settings of a skip are in a model's label."""

import io
import sys

import pytest

from dynskip_jax import functional as F
from dynskip_jax.commands.predict import input_lines
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import find_experiment
from dynskip_jax.results import row_name
from dynskip_jax.settings import resolve
from dynskip_jax.spec import make_spec


@pytest.mark.parametrize("named", [False, True])
def test_lines_without_a_mark_of_the_order_of_bytes(named, tmp_path, monkeypatch):
    text = "\ufeffone\ntwo \ufeff\n".encode()
    (tmp_path / "lines.txt").write_bytes(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="ascii"))
    assert list(input_lines(tmp_path / "lines.txt" if named else None)) == ["one", "two \ufeff"]


def test_standard_input_that_is_closed(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="closed"):
        list(input_lines(None))


def test_two_sentences_as_typed_stay_two():
    typed = find_experiment("sick").hook("tokenize")(None, "A dog runs.\tIt's a cat.")
    assert typed == "a dog runs .\tit 's a cat ."


@pytest.mark.parametrize(
    ("model", "max_skip", "reach", "named"),
    [
        ("dynamic:10", 3, 3, {"max_skip": 3}),
        ("dynamic:10", None, 10, {}),
        ("dynamic:10", (3, 5), 10, {}),
        ("attention:10", 3, 3, {"max_skip": 3}),
        ("lstm", 3, 1, {}),
    ],
)
def test_a_smaller_reach_is_part_of_the_name(model, max_skip, reach, named):
    command = find_experiment("number_prediction")
    settings = resolve(command.settings, command.presets, "relaxed", {"max_skip": max_skip}).settings
    assert make_spec(model, settings).reach == reach
    assert dict(make_spec(model, settings).variant) == named


@pytest.mark.parametrize(
    ("model", "given", "named"),
    [
        ("sparse:10", {"top": 3}, {"top": 3}),
        ("segment_attention:10", {"stride": 2}, {"stride": 2}),
        ("segment_dynamic:10", {"stride": 2}, {"stride": 2}),
        ("sparse:10", {}, {}),
    ],
)
def test_what_a_skip_is_made_with_is_part_of_the_name(model, given, named):
    command = find_experiment("number_prediction")
    spec = make_spec(model, resolve(command.settings, command.presets, "relaxed", given).settings)
    assert dict(spec.variant) == named
    shown = [f"{name} {value}" for name, value in named.items()]
    assert row_name({"model": model, **spec.variant}) == ", ".join([model, *shown])
    # A plain layer with a transition of one's own is named after it.
    assert row_name({"model": "lstm", "transition": "my_pieces:CoRNN"}) == "my_pieces:CoRNN"
    assert row_name({"model": "fixed:2", "transition": "ulstm"}) == "fixed:2, ulstm"
    assert not given or spec.skip.among == F.Segments(2) or spec.skip.top == 3
