"""Describe the machine and the software versions, and set the precision of matrix products."""

import contextlib
import datetime
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jax

Precision = Literal["default", "highest"]
_PACKAGES = ("dynskip_jax", "jax", "jaxlib", "flax", "optax", "numpy", "torch")


def describe(precision: Precision, with_torch: bool) -> dict[str, Any]:
    """Return a description of the machine and the software, which is stored with the results.

    Args:
        precision: Precision of float32 matrix products.
        with_torch: Whether PyTorch is measured. If not, it is not imported.
    """
    device = jax.devices()[0]
    about = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "backend": jax.default_backend(),
        "device": cpu_model() if device.platform == "cpu" else device.device_kind,
        "devices": jax.device_count(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "precision": precision,
        "environment": {
            name: os.environ[name] for name in ("XLA_FLAGS", "OMP_NUM_THREADS") if name in os.environ
        },
        "versions": {"python": platform.python_version(), **_versions()},
    }
    if with_torch:
        import torch

        about["torch"] = {
            "threads": torch.get_num_threads(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        }
    return about


def one_line(about: dict[str, Any]) -> str:
    """Return one line of the description from `describe`: device, cores, backend and versions."""
    versions = about["versions"]
    names = [f"{name} {versions[name]}" for name in ("jax", "flax", "torch") if name in versions]
    return f"{about['device']}, {about['cores']} cores, {about['backend']}; {', '.join(names)}"


def cpu_model() -> str:
    """Return the processor's name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def products(precision: Precision, with_torch: bool) -> Iterator[None]:
    """Set the same precision of float32 matrix products for JAX and PyTorch within the context.

    On NVIDIA GPUs, JAX uses TF32 by default, and PyTorch uses it only in cuDNN. With `default` both may use
    TF32 everywhere; with `highest` neither does. On a CPU both always compute in float32.
    """
    with contextlib.ExitStack() as stack:
        if precision == "highest":
            stack.enter_context(jax.default_matmul_precision("highest"))
        if with_torch:
            import torch

            for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
                stack.callback(setattr, backend, "allow_tf32", backend.allow_tf32)
                backend.allow_tf32 = precision == "default"
        yield


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
