"""Fixtures of several test files."""

import jax
import pytest


@pytest.fixture
def double_precision():
    with jax.enable_x64(True):
        yield
