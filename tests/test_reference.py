"""Check the tables of fields in the reference, if griffe is installed (extra `docs`)."""

import dataclasses
import runpy

import pytest
from pages import ROOT

from dynskip_jax import functional as F

CLASSES = [it for it in vars(F).values() if dataclasses.is_dataclass(it) and isinstance(it, type)]


@pytest.fixture(scope="module")
def package():
    griffe = pytest.importorskip("griffe", reason="the extra `docs` is not installed")
    extension = runpy.run_path(str(ROOT / "docs" / "fields.py"))["Fields"]
    options = dict(search_paths=[str(ROOT)], docstring_parser="google")
    return griffe.load("dynskip_jax", extensions=griffe.load_extensions(extension), **options)


def test_the_pages_by_kind_do_not_begin_with_the_docstring_of_functional(package):
    assert package["functional"].docstring is None


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_dataclass_shows_all_fields_with_types_and_defaults(package, cls):
    path = f"{cls.__module__}.{cls.__name__}".partition(".")[2]
    sections = package[path].docstring.parsed
    assert "attributes" not in [section.kind.value for section in sections]
    rows = [row for section in sections if section.title == "Fields:" for row in section.value]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    assert [row.name for row in rows] == [*fields]
    for row in rows:
        default = fields[row.name].default
        assert row.annotation
        if default is dataclasses.MISSING:
            assert row.value is None or row.value.endswith("()")
        elif isinstance(default, (str, int, float, type(None))):
            assert eval(str(row.value), {}) == default
