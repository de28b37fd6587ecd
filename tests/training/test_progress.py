"""Check progress: an occasional line in a log file, a bar on a terminal, and little work between updates."""

import io

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from dynskip_jax.training.progress import Progress


class Clock:
    def __init__(self):
        self.now = 1000.0

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


def test_estimate_counts_only_the_steps_of_this_process(clock):
    console = plain()
    with Progress(1000, "train", start=900, console=console, every=10, clock=clock) as progress:
        clock.now += 10
        progress.advance(10)
    assert lines(console)[0] == "train  91.0%  910/1000  elapsed 0:00:10  ETA 0:01:30"


def test_compiling_is_said_and_is_no_part_of_the_estimate(clock):
    """A program compiles in 40 s; steps take 1 s."""
    console = plain()
    progress = Progress(50, "train", console=console, every=1, clock=clock)
    clock.now += 1
    with progress.compiling("compiling the step"):
        clock.now += 40
    progress.advance(loss=1)
    for _ in range(2):
        clock.now += 1
        progress.advance(loss=1)
    assert [line.partition("ETA ")[2] for line in lines(console)] == [
        "-  compiling the step",
        "-  loss 1",
        "0:01:36  loss 1",  # 48 steps of 2 s: the second before the first step counts
        "0:01:10  loss 1",  # 47 steps of 3 / 2 s
    ]


def test_no_step_no_estimate(clock):
    console = plain()
    Progress(10, "train", console=console, clock=clock).close()
    assert lines(console) == ["train  0.0%  0/10  elapsed 0:00:00  ETA -"]


def test_metrics_are_fetched_only_when_drawn(clock):
    console, calls = plain(), []

    def fetch():
        calls.append(clock.now)
        return jnp.float32(123.4)

    progress = Progress(100, "train", console=console, every=30, clock=clock)
    for _ in range(45):
        clock.now += 1
        progress.advance(perplexity=fetch)
    assert calls == [1030.0]
    progress.close()
    progress.close()
    assert calls == [1030.0, 1045.0]
    assert [line.rsplit("  ", 1)[1] for line in lines(console)] == ["perplexity 123.4"] * 2


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
def test_metric_format(clock, value, text):
    console = plain()
    with Progress(1, "train", console=console, clock=clock) as progress:
        progress.advance(m=value)
    assert lines(console)[0].endswith(f"  m {text}")


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
    assert "━" in text and "75.0%" in text and "perplexity 123.4" in text and "ETA 0:00:00" in text


def test_default_console_leaves_standard_output_alone(capsys):
    with Progress(1, "train") as progress:
        progress.advance()
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("train  100.0%  1/1")
