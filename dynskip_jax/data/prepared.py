"""Find data sets that TFDS keeps: prepared on this machine, or else in their upstream archives."""

from collections.abc import Sequence

from dynskip_jax.data import upstream
from dynskip_jax.data.upstream import NotAvailable, Record, Upstream, is_prepared


def find_records(data: Upstream, splits: Sequence[str]) -> tuple[dict[str, list[Record]], str]:
    """Return the records of some splits, and where they were.

    They are read from the folder of TFDS, which is filled from the upstream archive if need be.
    """
    source = f"the TFDS cache {data.folder}"
    is_new = not is_prepared(data.folder)
    # Asked before TFDS is imported, so that a machine without a network does not wait.
    if is_new and not upstream.is_reachable(data.url):
        raise NotAvailable("its upstream address does not answer")

    from dynskip_jax.data import builders  # imports TFDS, which takes seconds

    if is_new:
        source = f"{data.url}, now kept in {data.folder}"
        builders.prepare(data)
    return builders.read_prepared(data.folder, splits), source
