"""`python -m experiments`: what there is."""

import importlib
import pkgutil

import experiments


def main() -> None:
    """Prints a line for each experiment: a module beside which stands another, named *_experiment."""
    names = {module.name for module in pkgutil.iter_modules(experiments.__path__)}
    for name in sorted(names):
        if f"{name}_experiment" in names:
            command = importlib.import_module(f"experiments.{name}").COMMAND
            print(f"python -m experiments.{name}  {command.about.strip().splitlines()[0]}")
    print("--help after any of these lists its flags, presets and commands")


if __name__ == "__main__":
    main()
