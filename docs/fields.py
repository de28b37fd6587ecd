"""Griffe extension: give each dataclass of the reference a table of its fields, inherited ones
included.
"""

import re
from pathlib import Path

import griffe

PACKAGE = "dynskip_jax"
SILENT = "functional"  # its pages have their own first sentences in place of its docstring


class Fields(griffe.Extension):
    """Add tables of fields with types, descriptions and defaults."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Change the docstrings of all classes of a package."""
        if pkg.name != PACKAGE:
            return
        pkg[SILENT].docstring = None
        for cls in classes_of(pkg):
            if "dataclass" in cls.labels and cls.docstring is not None:
                add_fields(cls)


def classes_of(module: griffe.Object) -> list[griffe.Class]:
    """Return all classes below a module that are defined there."""
    found = []
    for member in module.members.values():
        if member.is_alias:
            continue
        if member.is_class:
            found.append(member)
        if member.is_class or member.is_module:
            found += classes_of(member)
    return found


def add_fields(cls: griffe.Class) -> None:
    """Replace the section of attributes, if there is one, by a table of fields."""
    fields, descriptions = {}, {}
    for base in [*reversed(cls.mro()), cls]:
        for member in base.attributes.values():
            if not member.is_alias and "instance-attribute" in member.labels and member.annotation:
                fields[member.name] = member
        for section in sections_of(base, "attributes"):
            descriptions |= {item.name: item.description for item in section.value}
    rows = []
    for name, field in fields.items():
        description = descriptions.get(name) or comment_of(field)
        if not name.startswith("_") and not field.docstring:
            rows.append(row_of(field, description))
    sections = cls.docstring.parsed
    sections[:] = [section for section in sections if section.kind.value != "attributes"]
    if rows:
        sections.append(griffe.DocstringSectionParameters(rows, title="Fields:"))


def sections_of(cls: griffe.Class, kind: str) -> list[griffe.DocstringSection]:
    """Return the sections of one kind of a class's docstring."""
    if cls.docstring is None:
        return []
    docstring = griffe.Docstring(cls.docstring.value, parent=cls, parser="google")
    return [section for section in docstring.parsed if section.kind.value == kind]


def row_of(field: griffe.Attribute, description: str) -> griffe.DocstringParameter:
    """Return a row of the table; a field without a default is shown as required."""
    annotation, value = field.annotation, field.value
    if isinstance(value, griffe.ExprCall):
        given = {
            arg.name: arg.value for arg in value.arguments if isinstance(arg, griffe.ExprKeyword)
        }
        called = str(value.function).rpartition(".")[2]
        if called == "choice_field":  # one of its arguments, by default the first
            choices = [str(choice) for choice in value.arguments]
            annotation = " | ".join(choices)
            value = choices[0]
        elif called == "field":
            factory = given.get("default_factory")
            value = given.get("default") if factory is None else f"{factory}()"
    return griffe.DocstringParameter(
        field.name, annotation=annotation, description=description, value=value
    )


def comment_of(field: griffe.Attribute) -> str:
    """Return the comment at the end of a field's last line."""
    line = Path(field.filepath).read_text(encoding="utf-8").splitlines()[field.endlineno - 1]
    comment = re.search(r"\s# (?!noqa)(.*)", line)
    return comment[1] if comment else ""
