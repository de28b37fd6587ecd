"""Write files of users, and check that what is wrong with them is said in one line."""

import gzip
import io
import re
import tarfile

import pytest

from dynskip_jax.errors import UserError
from dynskip_jax.terminal.messages import printable

CONLL2003 = """\
-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

-DOCSTART- -X- O O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER


BRUSSELS NNP I-NP I-LOC
"""
CONLLU = """\
# sent_id = 1
# text = Don't pay 26 000.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tpay\tpay\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tpay\tpay\tVERB\tVB\t_\t_\t_\t3:conj\t_
4\t26 000\t26000\tNUM\tCD\t_\t3\tobj\t_\t_


# sent_id = 2
1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def archive(files):
    """Return a tar archive, with the same bytes whenever it is made."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return gzip.compress(buffer.getvalue(), mtime=0)


def assert_refused(read, path, problem):
    with pytest.raises(UserError, match=re.escape(problem)) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message and len(message) < 300 and printable(message) == message
