"""Read SICK (Marelli et al. 2014): pairs of sentences rated by relatedness, in the split of SemEval-2014."""

import os
from collections.abc import Mapping
from pathlib import Path

from dynskip_jax.data.data_folder import DATA_VARIABLE, named_folder
from dynskip_jax.data.messages import bad_file, quoted
from dynskip_jax.data.sentences import Pair, numbered_lines, treebank_words
from dynskip_jax.data.text import read_lines
from dynskip_jax.errors import UserError

NAME = "sick"
NUM_RATINGS = 5
FILES: Mapping[str, str] = {
    "train": "SICK_train.txt",
    "dev": "SICK_trial.txt",
    "test": "SICK_test_annotated.txt",
}
UPSTREAM_URL = "https://alt.qcri.org/semeval2014/task1/"
COLUMNS = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score")


def read_pairs(path: str | os.PathLike[str]) -> list[Pair]:
    """Read a file of sentence pairs: tab-separated columns, with the names of the columns in the first line.

    Args:
        path: Text file, plain or .gz, with the line ends of any system.

    Raises:
        UserError: If the file cannot be read or a line is invalid; the message names the line.
    """
    pairs, header = [], None
    for _, line, bad in numbered_lines(read_lines(path, blank_lines=True), path):
        fields = [field.strip() for field in line.split("\t")]
        if fields == [""]:
            continue
        if header is None:
            missing = [name for name in COLUMNS if name not in fields]
            if missing:
                raise bad(f"the first line names no column {missing[0]}")
            header = fields
            continue
        if len(fields) != len(header):
            raise bad(f"{len(fields)} columns apart by tabs, but the first line names {len(header)}")
        of = dict(zip(header, fields, strict=True))
        try:
            rating = float(of["relatedness_score"])
        except ValueError:
            raise bad(f"the rating {quoted(of['relatedness_score'])} is no number") from None
        if not 1 <= rating <= NUM_RATINGS:
            raise bad(f"the rating {rating:g} does not lie between 1 and {NUM_RATINGS}")
        first, second = (treebank_words(of[name]) for name in COLUMNS[1:3])
        if not first or not second:
            raise bad("a sentence has no words")
        pairs.append(Pair(first, second, rating))
    if not pairs:
        raise bad_file(path, "holds no pair below its first line: fetch it again")
    return pairs


def find_sick(
    data: str | os.PathLike[str] | None, environ: Mapping[str, str] = os.environ
) -> tuple[dict[str, list[Pair]], str]:
    """Read the corpus from `data`, or from the sub-folder sick of `$DYNSKIP_DATA_DIR` if `data` is None.

    Returns:
        The pairs of `train`, `dev` (trial) and `test`, and a phrase that describes where they were found.

    Raises:
        UserError: If there is no such folder, or a file is missing or invalid.
    """
    folder = named_folder(NAME, environ) if data is None else Path(data).expanduser()
    names = ", ".join(FILES.values())
    if folder is None:
        raise UserError(
            f"SICK was not found: put {names} of {UPSTREAM_URL} into a folder and name it with --data DIR, "
            f"or into ${DATA_VARIABLE}/{NAME}"
        )
    for name in FILES.values():
        if not (folder / name).is_file():
            raise bad_file(folder, f"has no {name}: put {names} of {UPSTREAM_URL} there")
    return {split: read_pairs(folder / name) for split, name in FILES.items()}, f"the folder {folder}"
