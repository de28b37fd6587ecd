"""`python -m experiments`: what there is."""

import ast
import importlib
import pkgutil
from pathlib import Path

import experiments

_BESIDE = ("report", "word_vectors")  # commands that are no experiments


def main() -> None:
    """Prints a line for each experiment: a module beside which stands another, named *_experiment."""
    names = {module.name for module in pkgutil.iter_modules(experiments.__path__)}
    for name in sorted(names):
        if f"{name}_experiment" in names:
            command = importlib.import_module(f"experiments.{name}").COMMAND
            print(f"python -m experiments.{name}  {command.about.strip().splitlines()[0]}")
    for name in _BESIDE:
        text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        print(f"python -m experiments.{name}  {ast.get_docstring(ast.parse(text)).splitlines()[0]}")
    print("--help after any of these lists its flags, presets and commands")


if __name__ == "__main__":
    main()
