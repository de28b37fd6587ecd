"""Check progress: an occasional line in a log file, a bar on a terminal, and little work."""

import io

import pytest
from rich.console import Console

from dynskip_jax.training.progress import Progress


class Display:
    """Progress on a plain console whose clock a test moves."""

    def __init__(self, total, **options):
        self.now = 1000.0
        self._file = io.StringIO()
        console = Console(file=self._file, width=40)
        self.progress = Progress(
            total, "train [x]:100:", console=console, clock=lambda: self.now, **options
        )

    lines = property(lambda self: self._file.getvalue().splitlines())


def test_a_line_soon_after_the_first_step_then_every_so_often_and_one_at_the_end():
    display = Display(100)
    fetched = []
    with display.progress as progress:
        for step in range(100):
            display.now += 1
            progress.advance(perplexity=lambda step=step: fetched.append(step) or 200.0 - step)
    assert fetched == [0, 5, 35, 65, 95, 99]
    assert display.lines == [
        "train [x]:100:  6.0%  6/100  elapsed 0:00:06  ETA 0:01:34  perplexity 195",
        "train [x]:100:  36.0%  36/100  elapsed 0:00:36  ETA 0:01:04  perplexity 165",
        "train [x]:100:  66.0%  66/100  elapsed 0:01:06  ETA 0:00:34  perplexity 135",
        "train [x]:100:  96.0%  96/100  elapsed 0:01:36  ETA 0:00:04  perplexity 105",
        "train [x]:100:  100.0%  100/100  elapsed 0:01:40  ETA 0:00:00  perplexity 101",
    ]


def test_the_estimate_leaves_out_an_earlier_process_and_the_first_step_which_compiles():
    display = Display(1000, start=900)
    with display.progress as progress:
        display.now += 30
        progress.show("compiling the step")
        display.now += 30
        for _ in range(3):
            progress.advance(10)
            display.now += 30
    assert [line.partition("  elapsed ")[2] for line in display.lines] == [
        "0:00:30  ETA -  compiling the step",
        "0:01:30  ETA 0:04:00",  # 80 steps of 3 s
        "0:02:00  ETA 0:03:30",
    ]
    assert display.lines[-1].startswith("train [x]:100:  93.0%  930/1000")


@pytest.mark.parametrize("seconds", [1, 3, 10, 40])
def test_the_first_estimate_is_right_for_steps_that_run_after_their_call(seconds):
    """JAX returns before a step has run; fetching a metric waits for the step."""
    display = Display(101)
    finished = display.now

    def wait():
        display.now = max(display.now, finished)
        return 1.0

    with display.progress as progress:
        display.now += 29  # compiling
        done = 0
        while not display.lines:
            done += 1
            finished = max(display.now, finished) + seconds
            display.now += 0.5  # next batch
            progress.advance(1, loss=wait)
        left = seconds * (101 - done)
    assert display.lines[0].endswith(
        f"ETA {left // 3600}:{left // 60 % 60:02}:{left % 60:02}  loss 1"
    )


@pytest.mark.parametrize("last", [0, 4, 5, 29, 30, 31, 40])
def test_the_last_state_is_a_line_once(last):
    """A line was due when the last step ended, or not: it is not printed again."""
    display = Display(2)
    with display.progress as progress:
        progress.advance(1)
        display.now += last
        progress.advance(1)
    (line,) = display.lines
    assert line.startswith("train [x]:100:  100.0%  2/2")


@pytest.mark.parametrize(
    ("value", "text"),
    [(123456.7, "123457"), (0.000123456, "0.0001235"), (1.5, "1.5"), (float("nan"), "nan")],
)
def test_the_last_state_is_drawn_when_the_loop_fails_and_metrics_are_brief(value, text):
    display = Display(10)
    with pytest.raises(KeyboardInterrupt), display.progress as progress:
        progress.advance(4, m=lambda: value)
        raise KeyboardInterrupt
    assert display.lines == [f"train [x]:100:  40.0%  4/10  elapsed 0:00:00  ETA -  m {text}"]


def test_a_bar_on_a_terminal_and_by_default_lines_on_standard_error(capsys):
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    for options in (dict(console=console), {}):
        with Progress(4, "train", **options) as progress:
            progress.advance(3, perplexity=lambda: 123.4)
    text = console.file.getvalue()
    assert "\x1b[?25l" in text and "\x1b[?25h" in text  # the cursor is hidden, then shown again
    assert "━" in text and "75.0%" in text and "perplexity 123.4" in text and "ETA -" in text
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("train  75.0%  3/4")
