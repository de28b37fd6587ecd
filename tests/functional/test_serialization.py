"""Check the registration of types that exported programs take and return."""

import subprocess
import sys

import jax
import pytest
from jax import export

from dynskip_jax import functional as F


def test_a_module_that_registers_types_may_be_imported_again():
    """Notebooks do so with autoreload. It needs its own process, because two classes have one name then."""
    program = "import importlib, dynskip_jax.functional.decisions as m; importlib.reload(m)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_second_registration_does_nothing():
    pytest.importorskip("flatbuffers", reason="exported programs are written with flatbuffers")
    assert F.register_for_export(F.LSTMState) is F.LSTMState
    state = F.LSTMState(jax.numpy.ones(2), jax.numpy.zeros(2))
    program = export.export(jax.jit(lambda state: state))(state)
    assert isinstance(export.deserialize(program.serialize()).call(state), F.LSTMState)
