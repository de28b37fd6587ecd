"""Describe the machine, and write figures as Markdown tables."""

import contextlib
import importlib.metadata
import math
import os
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax


def machine() -> str:
    """Return the device, the cores and the most important versions in one line."""
    versions = []
    for name in ("jax", "flax", "torch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    device = jax.devices()[0]
    name = _cpu() if device.platform == "cpu" else device.device_kind
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores; {', '.join(versions)}"


def number(value: float) -> str:
    """Return the value with three significant digits, or without decimals from 100 on."""
    if value >= 100:
        return f"{value:,.0f}"
    decimals = 2 - max(-3, math.floor(math.log10(value)))
    return f"{value:.{decimals}f}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cpu() -> str:
    with contextlib.suppress(OSError):
        if found := re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()):
            return found[1]
    return platform.processor() or platform.machine()
