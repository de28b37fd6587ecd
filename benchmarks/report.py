"""Describe the machine, and write figures as Markdown tables and JSON."""

import contextlib
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

_PACKAGES = ("dynskip_jax", "jax", "jaxlib", "flax", "optax", "numpy", "torch")


def describe() -> dict[str, Any]:
    """Return the device, the cores and the versions with which figures are stored."""
    device = jax.devices()[0]
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "backend": device.platform,
        "device": _cpu() if device.platform == "cpu" else device.device_kind,
        "cores": cores,
        "versions": versions,
    }


def one_line(about: Mapping[str, Any]) -> str:
    """Return the device, the cores and the most important versions of `describe` in one line."""
    versions = about["versions"]
    names = [f"{name} {versions[name]}" for name in ("jax", "flax", "torch") if name in versions]
    return f"{about['device']}, {about['cores']} cores; {', '.join(names)}"


def number(value: float) -> str:
    """Return the value with three significant digits, or without decimals from 100 on."""
    if value >= 100:
        return f"{value:,.0f}"
    if value <= 0:
        return f"{value:g}"
    decimals = 2 - max(-3, math.floor(math.log10(value)))
    return f"{value:.{decimals}f}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(folder: Path | None, name: str, content: Mapping[str, Any], text: str) -> None:
    """Write `content` to NAME.json and `text` to NAME.md in a folder, which may be new."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(
        json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8"
    )
    (folder / f"{name}.md").write_text(text + "\n", "utf-8")


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
