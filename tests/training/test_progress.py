"""Check progress: an occasional line in a log file, a bar on a terminal, and little work between updates."""

import io

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from dynskip_jax.training.progress import Progress


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def plain():
    return Console(file=io.StringIO(), width=40)


def lines(console):
    return console.file.getvalue().splitlines()


def test_lines_at_most_every_so_often_and_one_at_the_end(clock):
    console = plain()
    with Progress(100, "train [x]", console=console, every=30, clock=clock) as progress:
        for step in range(100):
            clock.now += 1
            progress.advance(perplexity=200.0 - step)
    assert lines(console) == [
        "train [x]  30.0%  30/100  elapsed 0:00:30  ETA 0:01:10  perplexity 171",
        "train [x]  60.0%  60/100  elapsed 0:01:00  ETA 0:00:40  perplexity 141",
        "train [x]  90.0%  90/100  elapsed 0:01:30  ETA 0:00:10  perplexity 111",
        "train [x]  100.0%  100/100  elapsed 0:01:40  ETA 0:00:00  perplexity 101",
    ]


def test_the_estimate_leaves_out_an_earlier_process_and_the_first_step_which_compiles(clock):
    console = plain()
    with Progress(1000, "train", start=900, console=console, every=1, clock=clock) as progress:
        with progress.compiling("compiling the step"):
            clock.now += 40
        with progress.compiling("compiling the step"):
            pass
        for _ in range(3):
            progress.advance(10)
            clock.now += 20
    assert [line.partition("  elapsed ")[2] for line in lines(console)] == [
        "0:00:40  ETA -  compiling the step",
        "0:01:00  ETA 0:02:40",  # 80 steps of 2 s
        "0:01:20  ETA 0:02:20",
        "0:01:40  ETA 0:03:30",  # 20 s without a step
    ]
    assert lines(console)[-1].startswith("train  93.0%  930/1000")


def test_no_step_no_estimate(clock):
    console = plain()
    with Progress(10, "train", console=console, clock=clock):
        pass
    assert lines(console) == ["train  0.0%  0/10  elapsed 0:00:00  ETA -"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (123456, "123456"),
        (123456.7, "123457"),
        (0.000123456, "0.0001235"),
        (np.array([1.0, 2.0]), "1.5"),
        (float("nan"), "nan"),
        ("warm-up", "warm-up"),
    ],
)
def test_metrics_are_written_briefly_and_fetched_only_when_drawn(clock, value, text):
    console, calls = plain(), []

    def fetch():
        calls.append(clock.now)
        return value if isinstance(value, str | int) else jnp.asarray(value)

    with Progress(100, "train", console=console, every=30, clock=clock) as progress:
        for _ in range(45):
            clock.now += 1
            progress.advance(m=fetch)
    assert calls == [1030.0, 1045.0]
    assert [line.rsplit("  ", 1)[1] for line in lines(console)] == [f"m {text}"] * 2


def test_the_last_state_is_drawn_when_the_loop_fails(clock):
    console = plain()
    with pytest.raises(KeyboardInterrupt), Progress(10, "train", console=console, clock=clock) as progress:
        progress.advance(4)
        raise KeyboardInterrupt
    assert lines(console)[0].startswith("train  40.0%  4/10")


def test_bar_on_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    with Progress(4, "train", console=console) as progress:
        progress.advance(3, perplexity=lambda: 123.4)
    text = console.file.getvalue()
    assert "\x1b[?25l" in text and "\x1b[?25h" in text  # the cursor is hidden, then shown again
    assert "━" in text and "75.0%" in text and "perplexity 123.4" in text and "ETA -" in text


def test_default_console_leaves_standard_output_alone(capsys):
    with Progress(1, "train") as progress:
        progress.advance()
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("train  100.0%  1/1")
