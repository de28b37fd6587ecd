"""Check the registration of types that exported programs take and return."""

import importlib
import subprocess
import sys

import jax
import pytest
from jax import export
from marks import and_slow

from dynskip_jax import functional as F


@pytest.mark.parametrize("module", and_slow(["serialization", "decisions", "layers"], "decisions".__eq__))
def test_a_module_that_registers_types_may_be_imported_again(module):
    """Notebooks do so with autoreload.

    The test runs in a separate process, because a reload leaves two classes with the same name.
    """
    program = (
        f"import importlib, dynskip_jax.functional.{module} as m; importlib.reload(m); importlib.reload(m)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_second_registration_does_nothing():
    pytest.importorskip("flatbuffers", reason="exported programs are written with flatbuffers")
    importlib.reload(importlib.import_module("dynskip_jax.functional.serialization"))
    assert F.register_for_export(F.LSTMState) is F.LSTMState
    state = F.LSTMState(jax.numpy.ones(2), jax.numpy.zeros(2))
    program = export.export(jax.jit(lambda state: state))(state)
    assert isinstance(export.deserialize(program.serialize()).call(state), F.LSTMState)


def test_what_is_no_named_tuple_is_refused():
    with pytest.raises(ValueError, match="namedtuple"):
        F.register_for_export(dict)
