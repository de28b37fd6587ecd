"""The command `dynskip`: lists the experiments, and runs one."""

import ast
import importlib
import sys
from pathlib import Path

from dynskip_jax.experiments.cli import main as run_experiment
from dynskip_jax.experiments.cli import run_main, run_tool
from dynskip_jax.experiments.command_line import program, unknown
from dynskip_jax.experiments.registry import EXPERIMENTS, find_experiment

_TOOLS = ("demo", "report", "reproduce", "word_vectors")  # commands that are not experiments


def main() -> None:
    """Run `dynskip NAME …`; without a name, list the commands."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        run_main(list_experiments)
    else:
        run_main(lambda: run_by_name(arguments[0], arguments[1:]))


def run_file(file: str) -> None:
    """Run the experiment or tool that a file is named after, with the arguments of this process."""
    run_main(lambda: run_by_name(Path(file).stem))


def run_by_name(name: str, arguments: list[str] | None = None) -> None:
    """Run the command line of an experiment or a tool.

    Args:
        name: Name of the experiment or tool.
        arguments: Command-line arguments after the name. Default: those of this process.

    Raises:
        UserError: If there is no such command, or the command fails for a reason that the user can fix.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if name == "word_vectors":
        importlib.import_module("dynskip_jax.experiments.word_vectors").main(arguments)
    elif name in _TOOLS:
        run_tool(name, arguments)
    elif name in EXPERIMENTS:
        run_experiment(find_experiment(name), arguments)
    else:
        raise unknown(name, [*EXPERIMENTS, *_TOOLS])


def list_experiments() -> None:
    """Print a line for each command: its name, and the first line of its help."""
    for name in (*EXPERIMENTS, *_TOOLS):
        path = Path(__file__).with_name(f"{name}.py")
        path = path if path.exists() else Path(__file__).parents[1] / "commands" / f"{name}.py"
        text = path.read_text(encoding="utf-8")
        print(f"{program(name)}  {ast.get_docstring(ast.parse(text)).splitlines()[0]}")
    print("--help after any of these lists its flags, presets and commands")


if __name__ == "__main__":
    main()
