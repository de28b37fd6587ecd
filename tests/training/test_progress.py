"""Check progress: an occasional line in a log file, a bar on a terminal, and little work."""

import io

import pytest
from rich.console import Console

from dynskip_jax.training import progress as module
from dynskip_jax.training.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """Move the clock by hand."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_elsewhere_metrics_are_computed_and_printed_now_and_then_and_at_the_end(clock):
    file = io.StringIO()
    fetched = []
    with Progress(100, "train [x]", console=Console(file=file, width=100)) as progress:
        for step in range(100):
            clock[0] += 1
            progress.advance(perplexity=lambda step=step: fetched.append(step) or 200.0 - step)
    assert fetched == [5, 35, 65, 95, 99]
    lines = file.getvalue().splitlines()
    assert [line.split()[2] for line in lines] == ["6/100", "36/100", "66/100", "96/100", "100/100"]
    assert all(line.startswith("train [x]") and "ETA" in line for line in lines)
    assert lines[0].split()[-2:] == ["perplexity", "195"]


def test_the_last_state_is_drawn_when_the_loop_fails():
    file = io.StringIO()
    display = Progress(10, "train", console=Console(file=file, width=100), start=3)
    with pytest.raises(KeyboardInterrupt), display as progress:
        progress.advance(4, loss=lambda: 123456.7)
        raise KeyboardInterrupt
    (line,) = file.getvalue().splitlines()
    assert "7/10" in " ".join(line.split()) and line.rstrip().endswith("loss 123457")


def test_a_bar_on_a_terminal_and_by_default_lines_on_standard_error(capsys):
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    for options in (dict(console=console), {}):
        with Progress(4, "train", **options) as progress:
            progress.show("compiling")
            progress.advance(3, perplexity=lambda: 123.4)
    text = console.file.getvalue()
    assert "━" in text and "3/4" in text and "perplexity 123.4" in text and "ETA" in text
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("train 3/4")
