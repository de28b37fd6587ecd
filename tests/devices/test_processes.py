"""One process alone, TPU hosts, senseless coordinators; tests/experiments runs several processes."""

import importlib
import socket

import pytest

from dynskip_jax.devices import processes
from dynskip_jax.devices.processes import Alone, connect
from dynskip_jax.errors import UserError


def test_one_process_agrees_with_itself():
    with connect() as alone:
        assert isinstance(alone, Alone)
        assert (alone.index, alone.count, alone.first) == (0, 1, True)
        value = {"a": [1.0]}
        assert alone.agree(value) is value and alone.share(value) is value
        assert alone.anyone(True) and not alone.anyone(False)


def test_without_a_tpu_the_network_is_not_asked(monkeypatch):
    def asked(key):
        raise AssertionError("asked")

    clusters = importlib.import_module("jax._src.clusters.cloud_tpu_cluster")
    monkeypatch.setattr(clusters, "get_metadata", asked)
    # Set by a cluster on whose login node somebody works alone.
    for name, value in (("SLURM_JOB_ID", "1"), ("SLURM_NTASKS", "4"), ("TPU_WORKER_HOSTNAMES", "a,b")):
        monkeypatch.setenv(name, value)
    assert isinstance(connect(), Alone)


@pytest.mark.parametrize(("hosts", "count"), [("a", 1), ("a,b,c", 3)])
def test_hosts_of_a_tpu_pod_are_those_that_jax_knows(hosts, count, monkeypatch):
    clusters = importlib.import_module("jax._src.clusters.cloud_tpu_cluster")
    monkeypatch.setattr(clusters, "running_in_cloud_tpu_vm", True)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", hosts)
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "1")
    assert processes._tpu_hosts() == count
    monkeypatch.delattr(clusters, "GkeTpuCluster")
    assert processes._tpu_hosts() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a:9", None, 2), "together"),
        ((None, 0, None), "together"),
        (("a", 0, 2), "HOST:PORT"),
        (("a:0", 0, 2), "HOST:PORT"),
        ((":9", 0, 2), "HOST:PORT"),
        (("a:99999", 0, 2), "HOST:PORT"),
        (("a:9", 2, 2), "--process-id lies between 0 and 1, got 2"),
        (("a:9", -1, 2), "--process-id lies between 0 and 1, got -1"),
        (("a:9", 0, 0), "--process-count must be at least 1"),
    ],
)
def test_senseless_coordinators(arguments, message):
    with pytest.raises(UserError, match=message):
        connect(*arguments)


def test_what_a_process_says_at_once_is_heard(monkeypatch):
    """One that fails on its first line takes leave together with its greeting."""
    clients = []

    def connect_at_once(address):
        client = socket.create_connection(("127.0.0.1", address["port"]))
        client.sendall(f"{address['token']} 1\n".encode() + b'{"leave": "no data"}\n')
        clients.append(client)
        return address

    monkeypatch.setattr(processes, "_broadcast_address", connect_at_once)
    (peer,) = processes._connect_to_others(2, "127.0.0.1").values()
    assert peer.recv(100) == b'{"leave": "no data"}\n'
    for connection in (peer, *clients):
        connection.close()
