"""Write files of users, and check that what is wrong with them is said in one line that names them."""

import gzip
import re

import pytest

from dynskip_jax.data.messages import printable
from dynskip_jax.errors import UserError


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def assert_refused(read, path, problem):
    with pytest.raises(UserError, match=re.escape(problem)) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message and len(message) < 300 and printable(message) == message
