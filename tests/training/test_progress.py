"""Check progress: an occasional line in a log file, a bar on a terminal, and little work between updates."""

import io

import pytest
from rich.console import Console

from dynskip_jax.training.progress import Progress


class Display:
    """Progress on a plain console whose clock a test moves."""

    def __init__(self, total, **options):
        self.now, self._file = 1000.0, io.StringIO()
        console = Console(file=self._file, width=40)
        self.progress = Progress(total, "train [x]:100:", console=console, clock=lambda: self.now, **options)

    lines = property(lambda self: self._file.getvalue().splitlines())


def test_lines_at_most_every_so_often_and_one_at_the_end():
    display, fetched = Display(100), []
    with display.progress as progress:
        for step in range(100):
            display.now += 1
            progress.advance(perplexity=lambda step=step: fetched.append(step) or 200.0 - step)
    assert fetched == [29, 59, 89, 99]
    assert display.lines == [
        "train [x]:100:  30.0%  30/100  elapsed 0:00:30  ETA 0:01:10  perplexity 171",
        "train [x]:100:  60.0%  60/100  elapsed 0:01:00  ETA 0:00:40  perplexity 141",
        "train [x]:100:  90.0%  90/100  elapsed 0:01:30  ETA 0:00:10  perplexity 111",
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
        "0:01:00  ETA -",
        "0:01:30  ETA 0:04:00",  # 80 steps of 3 s
        "0:02:00  ETA 0:03:30",
        "0:02:30  ETA 0:03:30",
    ]
    assert display.lines[-1].startswith("train [x]:100:  93.0%  930/1000")


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
