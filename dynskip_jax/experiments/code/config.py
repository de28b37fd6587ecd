"""Source code: a language model that copies names from where they were used before.

    python -m experiments.code
    python -m experiments.code --data DIR --compare lstm,dynamic:500
    python -m experiments.code evaluate --run-dir DIR --model lstm --cache 500
    python -m experiments.code complete FILE:LINE:COLUMN --run-dir DIR
    python -m experiments.code explain FILE --run-dir DIR

    small  2 x 200, dropout 0.1, the default; dynamic:500 copies tokens

Without --data it reads the standard library of the running Python, half a million tokens. With
--data it reads any folder of source code. Names that are rare in train are numbered in each file.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

from dynskip_jax.config.experiment import Experiment, columns_of
from dynskip_jax.config.flags import Bounds
from dynskip_jax.config.settings import Data, with_groups
from dynskip_jax.experiments.language_config import COPY_BY_CONTENT, LANGUAGE, LanguageSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeData(Data):
    """The source code; any folder will do."""

    data: Path | None = None
    """Folder of source code; by default the standard library of the running Python."""
    max_tokens: Annotated[int, Bounds(1, 1_000_000_000)] = 600_000
    """Read at most about this many tokens, of which five sixths are train."""


EXPERIMENT = Experiment(
    name="code",
    about=__doc__,
    task="dynskip_jax.experiments.code.task:CodeModelling",
    settings=with_groups(LanguageSettings, data=CodeData()),
    presets={
        "small": COPY_BY_CONTENT
        | dict(
            agent_keys="followed", dropout=(0.1,), num_steps=20, epochs=3, decay=2.0, decay_after=2
        ),
    },
    model="dynamic:500",
    least_updates=3000,
    columns=columns_of("perplexity", "perplexity", ".2f")
    | {
        "test_accuracy": ("top-1", ".1%"),
        "test_names_accuracy": ("top-1, names", ".1%"),
        "test_names_top5": ("top-5, names", ".1%"),
        "test_new_names_accuracy": ("top-1, new names", ".1%"),
    },
    **LANGUAGE,
    commands=("code.complete", "code.explain", "evaluate"),
)
