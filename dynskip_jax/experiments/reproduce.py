"""The commands behind each results table: print them, or run them again.

    python -m experiments.reproduce --list
    python -m experiments.reproduce numbers-11 --dry-run
    python -m experiments.reproduce numbers-11 --size reduced
    python -m experiments.reproduce imdb --data DIR --embeddings vectors.txt

Every table of docs/results has a name here. Its commands run one after another, each in a run folder below
--out, and a report over all of them ends the run. The same command goes on where it was stopped. At reduced
size every command has few units, one epoch and one seed: it shows that it runs, and its numbers mean nothing.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.command_line import program, read_flags, unknown
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import path_setting, setting

report = LazyModule("dynskip_jax.experiments.report")

INTERRUPTED = 130  # exit status of a run that was interrupted and can be resumed


class Run(NamedTuple):
    """One command.

    Attributes:
        name: Name of the run's folder.
        experiment: Name of the experiment.
        flags: Command-line flags, as typed. `{NAME}` stands for the folder of an earlier run, and `{vectors}`
            for the file of --embeddings. The first entry may be a command other than training, such as
            `evaluate`.
        why: Purpose of the command.
    """

    name: str
    experiment: str
    flags: tuple[str, ...]
    why: str = ""

    @property
    def trains(self) -> bool:
        """Whether the command trains; otherwise its first flag is the name of another command."""
        return self.flags[0].startswith("--")


class Table(NamedTuple):
    """A table of results.

    Attributes:
        name: Name of the table on the command line.
        page: Name of its page in docs/results, without the file ending.
        section: Heading above the table.
        runs: Commands of the table, in order.
    """

    name: str
    page: str
    section: str
    runs: tuple[Run, ...]


def _runs(experiment: str, **commands: str) -> tuple[Run, ...]:
    """Return a run for each command line in `commands`; `_` in its name becomes `-`."""
    return tuple(
        Run(name.replace("_", "-"), experiment, tuple(shlex.split(line))) for name, line in commands.items()
    )


_VECTORS = "--embeddings {vectors}"
_WIDE_VECTORS = f"{_VECTORS} --embedding-features 100"
_PAPER = "--epochs 20 --decay-after 7 --decay 1.35 --precision bf16"
_FAR_650 = (
    "--preset far --model dynamic:200 --features 650 --num-steps 35 --dropout 0.5 --init-scale 0.05 "
    f"--agent-learning-rate 0.01 {_PAPER}"
)
_DROPOUT = "--epochs 6 --decay-after 3 --dropout"
_FAR_DROPOUT = f"--preset far {_DROPOUT} 0.2 --agent-learning-rate 0.01"
_WIKITEXT = "--epochs 2 --decay-after 1 --dropout 0.2"
_FAR_WIKITEXT = f"--dataset wikitext2 --preset far --model dynamic:200 {_WIKITEXT} --agent-learning-rate 0.01"
_SIZES = {"lstm": 200, "ulstm": 194, "plstm": 200, "gru": 206, "peephole": 200, "full_gate": 178}
_NER_CONTROL = "--model dynamic:5 --rl-coef 0 --evaluation-mode sample"
_STRONG = f"--preset strong --model lstm {_WIDE_VECTORS}"
_IMDB_PAPER = f"--preset paper --features 200 {_WIDE_VECTORS}"
_EXACT = "--baseline batch --entropy exact --entropy-coef 0.001"
_SST = f"--no-bidirectional {_WIDE_VECTORS} --batch-size 128 --epochs 4 --average-after 2 --seeds"
_DEEP = "--preset deep --model lstm --epochs 4"


def _transitions(experiment: str, flags: str) -> tuple[Run, ...]:
    """Return a run of the models lstm and dynamic:3 with each of three transitions."""
    lines = {
        f"{transition}{'' if model == 'lstm' else '_dynamic_3'}": (
            f"--model {model} --transition {transition} {flags}"
        )
        for model in ("lstm", "dynamic:3")
        for transition in ("lstm", "plstm", "ulstm")
    }
    return _runs(experiment, **lines)


TABLES: tuple[Table, ...] = (
    Table("numbers-11", "number_prediction", "Length 11, one hop", _runs(
        "number_prediction",
        compared="--compare lstm,attention:10,fixed:5 --seeds 5 --epochs 10 --patience 2",
        dynamic_10="--model dynamic:10 --seeds 5 --epochs 10 --patience 2",
        dynamic_10_untrained="--model dynamic:10 --epochs 10 --patience 2 --control untrained",
    )),
    Table("numbers-11-skips", "number_prediction", "Other time skips", _runs(
        "number_prediction",
        compared="--compare sparse:10,log_attention:10,segment_attention:10,log_dynamic:10,"
        "segment_dynamic:10 --epochs 10 --patience 2",
    )),
    Table("numbers-21", "number_prediction", "Length 21, two hops", _runs(
        "number_prediction",
        dynamic_10="--length 21 --model dynamic:10 --seeds 5",
        compared="--length 21 --compare lstm,attention:10,fixed:5 --seeds 5",
    )),
    Table("numbers-long", "number_prediction", "Longer sequences, one hop over T steps", _runs(
        "number_prediction",
        lstm_51="--length 51 --model lstm",
        dynamic_50="--length 51 --model dynamic:50",
        dynamic_100="--length 101 --model dynamic:100 --learning-rate 0.001 --batch-size 128 "
        "--relaxed-epochs 4 --epochs 6",
        lstm_201="--length 201 --model lstm",
        dynamic_200="--length 201 --model dynamic:200",
        log_dynamic="--length 201 --model log_dynamic:200",
        segment_dynamic="--length 201 --model segment_dynamic:200 --stride 10",
    )),
    Table("agreement", "agreement", "Agreement at a distance: results", _runs(
        "agreement",
        dynamic_19="--length 20 --model dynamic:19 --seeds 3",
        control="--length 20 --model dynamic:19 --seeds 3 --control untrained",
        lstm="--length 20 --model lstm --seeds 3",
        random_19="--length 20 --model random:19 --seeds 3",
    )),
    Table("ptb-650", "language_models", "The paper's size, preset `paper`", _runs(
        "ptb",
        lstm=f"--preset paper --model lstm {_PAPER}",
        lstm_cache="evaluate --run-dir {lstm}",
        dynamic_5=f"--preset paper --model dynamic:5 {_PAPER}",
        dynamic_5_control=f"--preset paper --model dynamic:5 --control untrained {_PAPER}",
        dynamic_200=_FAR_650,
        dynamic_200_cache="evaluate --run-dir {dynamic-200}",
        control=f"{_FAR_650} --control untrained",
    )),
    Table("ptb-small", "language_models", "The small model without dropout, preset `small`", _runs(
        "ptb",
        compared="--preset small --epochs 7 --seeds 3 --compare lstm,fixed:3,fixed:5,attention:5,dynamic:5",
        control="--preset small --epochs 7 --seeds 3 --model dynamic:5 --rl-coef 0 --evaluation-mode sample",
    )),
    Table("ptb-copying", "language_models", "Copying words from the last 200, without dropout", _runs(
        "ptb",
        dynamic_200="--preset far --model dynamic:200 --seeds 3",
        control="--preset far --model dynamic:200 --seeds 3 --control untrained",
        rates="--preset far --model dynamic:200 --control histogram --control-of {dynamic-200}",
        mean="--preset far --model dynamic:200 --control mean",
        attention="--preset far --model content:200 --mix 0.5",
        sparse="--preset far --model sparse:200",
        sparse_50="--preset far --model sparse:200 --top 50",
        segment="--preset far --model segment_dynamic:200 --stride 10",
        log="--preset far --model log_dynamic:512",
        lstm_zoneout="--preset sketch --model lstm --zoneout 0.1",
        lstm="--preset sketch --model lstm --seeds 3",
    )),
    Table("ptb-copying-dropout", "language_models", "Copying words from the last 200, with dropout", _runs(
        "ptb",
        lstm_01=f"--preset sketch --model lstm {_DROPOUT} 0.1",
        lstm=f"--preset sketch --model lstm {_DROPOUT} 0.2 --seeds 3",
        lstm_03=f"--preset sketch --model lstm {_DROPOUT} 0.3",
        zoneout_005=f"--preset sketch --model lstm {_DROPOUT} 0.2 --zoneout 0.05",
        zoneout_01=f"--preset sketch --model lstm {_DROPOUT} 0.2 --zoneout 0.1",
        dynamic_200=f"{_FAR_DROPOUT} --seeds 3",
        control=f"{_FAR_DROPOUT} --control untrained --seeds 3",
        hard=f"{_FAR_DROPOUT} --copy chosen --relaxation soft --relaxed-epochs 3 --seeds 3",
        rates=f"{_FAR_DROPOUT} --control histogram --control-of {{dynamic-200}}",
        mean=f"{_FAR_DROPOUT} --control mean",
        attention=f"--preset far {_DROPOUT} 0.2 --model content:200 --mix 0.5",
        dynamic_5=f"--preset sketch --model dynamic:5 {_DROPOUT} 0.2 --seeds 3",
        dynamic_5_control=f"--preset sketch --model dynamic:5 {_DROPOUT} 0.2 --control untrained --seeds 3",
        lstm_cache="evaluate --run-dir {lstm}",
        dynamic_200_cache="evaluate --run-dir {dynamic-200}",
    )),
    Table("ptb-cache", "language_models", "A neural cache with the small model", _runs(
        "ptb",
        compared="--preset small --epochs 7 --compare lstm,dynamic:5",
        cache="evaluate --run-dir {compared}",
    )),
    Table("wikitext2", "language_models", "WikiText-2", _runs(
        "ptb",
        lstm=f"--dataset wikitext2 --preset sketch --model lstm {_WIKITEXT}",
        dynamic_200=_FAR_WIKITEXT,
        control=f"{_FAR_WIKITEXT} --control untrained",
    )),
    Table("transitions", "language_models", "Transitions", tuple(
        run
        for name, size in _SIZES.items()
        for run in _runs("ptb", **{
            name: f"--preset sketch --compare lstm,dynamic:5 --transition {name} --features {size}",
            f"{name}_control": f"--preset sketch --model dynamic:5 --transition {name} --features {size} "
            "--control untrained",
        })
        if run.name != "full-gate-control"  # not measured
    )),
    Table("transitions-newer", "language_models", "Newer transitions", _runs(
        "ptb",
        slstm="--preset sketch --model lstm --transition slstm --features 200",
        min_lstm="--preset sketch --model lstm --transition min_lstm --features 218 --learning-rate 0.5",
        min_gru="--preset sketch --model lstm --transition min_gru --features 222 --learning-rate 1,0.5",
        ind_rnn="--preset sketch --model lstm --transition ind_rnn --features 227 --learning-rate 0.25",
    )),
    Table("ptb-mix", "language_models", "Two values of λ", _runs(
        "ptb", dynamic_5="--preset sketch --model dynamic:5 --mix 0.5,1"
    )),
    Table("embedded", "language_models", "The embedded corpus", _runs(
        "ptb",
        compared="--dataset pydoc-topics --compare lstm,dynamic:5 --seeds 3",
        control="--dataset pydoc-topics --model dynamic:5 --control untrained --seeds 3",
    )),
    Table("entities", "tagging", "Named entities (CoNLL-2003; Gui et al. 2019, Table 2)", _runs(
        "conll2003",
        compared="--epochs 12 --compare lstm,dynamic:5 --seeds 3",
        control=f"--epochs 12 {_NER_CONTROL} --seeds 3",
        vectors=f"--epochs 12 --compare lstm,dynamic:5 --seeds 3 {_VECTORS}",
        vectors_control=f"--epochs 12 {_NER_CONTROL} --seeds 3 {_VECTORS}",
        vectors_others=f"--epochs 12 --compare fixed:3,fixed:5,attention:5,content:5 {_VECTORS}",
    )),
    Table("chunks", "tagging", "Chunks (CoNLL-2000)", _runs(
        "conll2003",
        random="--dataset conll2000 --model lstm --seeds 3 --epochs 12",
        affixes=f"--dataset conll2000 --model lstm --epochs 10 {_VECTORS} --affixes 5",
        speech=f"--dataset conll2000 --model lstm --epochs 10 {_VECTORS} --affixes 5 --columns 1 --seeds 3",
    )),
    Table("pos", "tagging", "Parts of speech (Universal Dependencies, English EWT)", _runs(
        "pos",
        upos="--model lstm --seeds 3 --epochs 10 --tag upos",
        xpos="--model lstm --seeds 3 --epochs 10 --tag xpos",
    )),
    Table("depth", "tagging", "Skips over depth (Wu et al. 2016, Tables 2 and 3, in shape)", _runs(
        "pos",
        none_7=f"{_DEEP} --depth-skip none --num-layers 7 --seeds 2",
        gated_output_7=f"{_DEEP} --depth-skip gated_output --num-layers 7 --seeds 2",
        **{
            f"{kind}_7": f"{_DEEP} --depth-skip {kind} --num-layers 7"
            for kind in ("output", "internal", "gated_internal", "gates", "highway", "dense", "attention")
        },
        **{
            f"gated_output_{layers}": f"{_DEEP} --depth-skip gated_output --num-layers {layers}"
            for layers in (3, 5, 9, 11)
        },
        rhn_3=f"{_DEEP} --depth-skip none --num-layers 1 --transition rhn:3",
    )),
    Table("imdb", "classification", "Movie reviews (IMDB; Gui et al. 2019, Table 4), preset `small`", _runs(
        "imdb",
        bigrams="bigrams",
        lstm=f"--model lstm {_WIDE_VECTORS} --seeds 3",
        dynamic_3=f"--model dynamic:3 {_WIDE_VECTORS} --seeds 3",
        control=f"--model dynamic:3 {_WIDE_VECTORS} --seeds 3 --control untrained",
        skip_rnn_3=f"--model skip_rnn --update-cost 0.0003 {_WIDE_VECTORS} --seeds 3",
        skip_rnn_1=f"--model skip_rnn --update-cost 0.0001 {_WIDE_VECTORS} --seeds 3",
        lstm_jump=f"--model lstm_jump --read-steps 20 --max-jump 40 --max-jumps 5 {_WIDE_VECTORS} --seeds 3",
        zoneout=f"--model lstm --zoneout 0.1 {_WIDE_VECTORS}",
        others=f"--compare fixed:3,fixed:5,attention:3,content:3 {_WIDE_VECTORS}",
    )),
    Table("imdb-strong", "classification", "Movie reviews, preset `strong`", _runs(
        "imdb",
        words_400_epochs_5=f"{_STRONG} --max-length 400 --epochs 5",
        words_400_epochs_8=f"{_STRONG} --max-length 400 --epochs 8",
        words_1000=_STRONG,
    )),
    Table("imdb-paper", "classification", "Movie reviews, preset `paper`, with 200 units", _runs(
        "imdb",
        lstm=f"{_IMDB_PAPER} --model lstm --seeds 3",
        dynamic_3=f"{_IMDB_PAPER} --model dynamic:3",
        dynamic_3_exact=f"{_IMDB_PAPER} --model dynamic:3 {_EXACT} --seeds 2",
        control=f"{_IMDB_PAPER} --model dynamic:3 --control untrained",
        lstm_128=f"--preset paper {_WIDE_VECTORS} --model lstm",
        dynamic_3_128=f"--preset paper {_WIDE_VECTORS} --model dynamic:3 {_EXACT}",
    )),
    Table("sst", "classification", "Sentiment of sentences (SST-5)", (
        *_transitions("sst", f"{_SST} 5"),
        *_runs("sst", control=f"--model dynamic:3 --transition lstm --control untrained {_SST} 1"),
    )),
    Table("sick", "classification", "Similarity of sentences (SICK)", (
        *_transitions("sick", "--seeds 5"),
        *_runs(
            "sick",
            control="--model dynamic:3 --transition lstm --control untrained --seeds 5",
            lstm_vectors=f"--model lstm --transition lstm {_WIDE_VECTORS} --seeds 5",
        ),
    )),
    Table("choice-numbers", "choice", "Number prediction, last 10 states", _runs(
        "number_prediction",
        dynamic_10="--length 11 --model dynamic:10 --features 64 --epochs 4",
        oracle="oracle --run-dir {dynamic-10} --rows 500",
    )),
    Table("choice-entities", "choice", "Named entities, last 5 states", _runs(
        "conll2003",
        dynamic_5=f"--epochs 12 --model dynamic:5 {_VECTORS}",
        oracle="oracle --run-dir {dynamic-5} --layer 1 --steps 8000",
    )),
    Table("choice-ptb", "choice", "Penn Treebank, last 5 states", _runs(
        "ptb",
        dynamic_5=f"--preset sketch --model dynamic:5 {_DROPOUT} 0.2",
        oracle="oracle --run-dir {dynamic-5} --steps 30000",
    )),
    Table("choice-sst", "choice", "Sentences, last 3 states", _runs(
        "sst",
        dynamic_3=f"--model dynamic:3 --transition lstm {_SST} 5",
        oracle="oracle --run-dir {dynamic-3} --steps 6000",
        oracle_train="oracle --run-dir {dynamic-3} --steps 6000 --split train",
    )),
    Table("choice-imdb", "choice", "Movie reviews, last 3 states", _runs(
        "imdb",
        dynamic_3_exact=f"{_IMDB_PAPER} --model dynamic:3 {_EXACT}",
        oracle="oracle --run-dir {dynamic-3-exact} --steps 6000",
    )),
    Table("choice-copying", "choice", "Copying from the last 200 states", _runs(
        "ptb",
        dynamic_200=_FAR_DROPOUT,
        hard=f"{_FAR_DROPOUT} --copy chosen --relaxation soft --relaxed-epochs 3 --seeds 2",
        oracle_hard="oracle --run-dir {hard} --steps 73760 --rows 10",
        oracle="oracle --run-dir {dynamic-200} --steps 82430 --rows 10 --split test",
    )),
)  # fmt: skip

# Flags that every training command gets at reduced size. Language models then read the embedded corpus.
REDUCED: Mapping[str, tuple[str, ...]] = {
    "agreement": ("--features", "8", "--train-examples", "512", "--epochs", "1", "--seeds", "1"),
    "conll2003": ("--features", "8", "--epochs", "1", "--seeds", "1"),
    "imdb": ("--features", "8", "--epochs", "1", "--seeds", "1", "--max-length", "50"),
    "number_prediction": ("--features", "8", "--train-examples", "256", "--epochs", "1", "--seeds", "1"),
    "pos": ("--features", "8", "--epochs", "1", "--seeds", "1"),
    "ptb": (
        *("--dataset", "pydoc-topics", "--features", "8", "--batch-size", "100", "--epochs", "1"),
        *("--seeds", "1"),
    ),
    "sick": ("--features", "8", "--epochs", "1", "--seeds", "1"),
    "sst": ("--features", "8", "--epochs", "1", "--seeds", "1"),
}
_REDUCED_COMMANDS = {
    "bigrams": ("--max-length", "50"),
    "evaluate": ("--cache", "20", "--flatness", "0.1", "--weight", "0.1"),
    "oracle": ("--steps", "200"),
}
_WITHOUT_FILES = ("number_prediction", "agreement")  # experiments with generated data


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of this command."""

    names: tuple[str, ...] = setting((), "Tables; --list names them.", positional="NAME")
    size: Literal["full", "reduced"] = setting(
        "full", "reduced: few units, one epoch and one seed, to see that every command runs."
    )
    data: str | None = path_setting(
        None, "Folder of the tables' corpus; by default where the experiments look for it."
    )
    embeddings: str | None = path_setting(
        None,
        "File of word vectors, which some tables need at full size; word_vectors makes one.",
    )
    out: str | None = path_setting(None, "Folder of all run folders; by default runs/reproduce/NAME-SIZE.")
    dry_run: bool = setting(False, "Print the commands, and run nothing.")
    list: bool = setting(False, "Print the name of every table, and its page.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        UserError: If there is no such table, or a command failed.
    """
    given = sys.argv[1:] if arguments is None else arguments
    flags = read_flags(program("reproduce"), __doc__, Flags, given)
    if flags.list or not flags.names:
        for table in TABLES:
            print(f"{table.name:<20} {len(table.runs):>2} commands, {table.page}.md: {table.section}")
        return
    for name in flags.names:
        _reproduce(find_table(name), flags)


def find_table(name: str) -> Table:
    """Return the table with a name.

    Raises:
        UserError: If there is no such table.
    """
    for table in TABLES:
        if table.name == name:
            return table
    raise unknown(name, [table.name for table in TABLES])


def arguments_of(table: Table, flags: Flags) -> Iterator[tuple[Run, list[str]]]:
    """Yield each run of a table with its command line, which begins with the experiment's name.

    Raises:
        UserError: If a run needs word vectors, and --embeddings is not given.
    """
    out = Path(flags.out or Path("runs", "reproduce", f"{table.name}-{flags.size}"))
    if flags.out is not None and len(flags.names) > 1:
        out /= table.name
    folders = {run.name: str(out / run.name) for run in table.runs}
    for run in table.runs:
        line = _sized(run, flags)
        if not run.trains:
            line = [run.flags[0], *line]
        if flags.data is not None and _reads_files(run, flags):
            line += ["--data", flags.data]
        line = [_with_paths(part, {**folders, "vectors": flags.embeddings}) for part in line]
        yield run, [run.experiment, *line, *(["--run-dir", folders[run.name]] if run.trains else [])]


def _with_paths(part: str, paths: Mapping[str, str | None]) -> str:
    """Return a part of a command line with each `{NAME}` replaced by its path."""
    return re.sub(r"\{(.*?)\}", lambda found: paths[found[1]], part)


def _sized(run: Run, flags: Flags) -> list[str]:
    """Return the flags of a run at the requested size, without the name of a command.

    Raises:
        UserError: If the run needs word vectors at full size, and --embeddings is not given.
    """
    line = list(run.flags if run.trains else run.flags[1:])
    if flags.size == "reduced":
        line += REDUCED[run.experiment] if run.trains else _REDUCED_COMMANDS[run.flags[0]]
    needs_vectors = "{vectors}" in line
    if needs_vectors and flags.embeddings is None and flags.size == "full":
        raise UserError(
            f"{run.name} begins with word vectors: give --embeddings FILE; "
            "python -m experiments.word_vectors --output FILE makes one"
        )
    without = ("--embeddings",) if needs_vectors and flags.embeddings is None else ()
    return last_of_each(line, without)


def last_of_each(line: Sequence[str], without: Sequence[str] = ()) -> list[str]:
    """Return a command line with only the last value of each flag, and without the flags in `without`."""
    given: dict[str, list[str]] = {}
    for part in line:
        if part.startswith("--"):
            values = given[part] = []
        else:
            values.append(part)
    return [part for name, values in given.items() if name not in without for part in (name, *values)]


def _reads_files(run: Run, flags: Flags) -> bool:
    """Return whether a run takes --data; commands over a finished run take the location from that run."""
    if "--run-dir" in run.flags:
        return False
    if run.experiment == "ptb":
        return flags.size == "full" and "pydoc-topics" not in run.flags
    return run.experiment not in _WITHOUT_FILES


def _run(line: Sequence[str]) -> int:
    """Run a command line of `dynskip`, and return its exit status."""
    process = subprocess.Popen([sys.executable, "-m", "dynskip_jax.experiments", *line])
    try:
        return process.wait()
    except KeyboardInterrupt:  # the process was interrupted, too: it saves and exits
        process.wait()
        return INTERRUPTED


def _reproduce(table: Table, flags: Flags) -> None:
    """Print the commands of a table, or run them and report.

    Raises:
        UserError: If a command failed.
    """
    trained = []
    for run, line in arguments_of(table, flags):
        print(shlex.join([*program(line[0]).split(), *line[1:]]), flush=True)
        if run.trains:
            trained.append(line[-1])
        if flags.dry_run:
            continue
        status = _run(line)
        if status == INTERRUPTED:
            raise SystemExit(INTERRUPTED)
        if status:
            raise UserError(
                f"{table.name}: {run.name} failed with exit status {status}; its message is above"
            )
    print(shlex.join([*program("report").split(), *trained]), flush=True)
    if not flags.dry_run:
        report.main(trained)


if __name__ == "__main__":
    from dynskip_jax.experiments.__main__ import run_file

    run_file(__file__)
