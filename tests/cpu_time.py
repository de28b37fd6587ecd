"""Pytest plugin that measures and bounds the CPU time of each test, each shared fixture and the
whole run.

A bound on CPU time also holds on a busy machine, unlike one on wall time. `.ci/run` sets the
bounds.
"""

import os

import pytest

SHOWN = 10  # number of slowest tests and fixtures that --cpu-times lists


def pytest_addoption(parser):
    group = parser.getgroup("CPU time")
    group.addoption(
        "--cpu-times", action="store_true", help="Show the tests that take most CPU time."
    )
    group.addoption(
        "--max-cpu", type=float, help="Fail if the run takes more CPU seconds than this."
    )
    group.addoption(
        "--max-test-cpu", type=float, help="Fail if one test takes more CPU seconds than this."
    )


def pytest_configure(config):
    config.pluginmanager.register(CpuTimes(config), "cpu times")


def seconds():
    """Return the CPU seconds of this process, its threads, and its children that have ended."""
    return sum(os.times()[:4])


class CpuTimes:
    """Plugin object that measures CPU time in every process; the main process checks the bounds."""

    def __init__(self, config):
        self.config = config
        self.tests, self.fixtures = {}, {}
        self.workers = 0.0
        self._in_fixtures = 0.0  # CPU seconds of the shared fixtures of the current test

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self._in_fixtures, before = 0.0, seconds()
        result = yield
        self.tests[item.nodeid] = seconds() - before - self._in_fixtures
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        """Count a shared fixture separately, not as part of the first test that uses it."""
        outer, before = self._in_fixtures, seconds()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                taken, name = (
                    seconds() - before,
                    f"{fixturedef.baseid}::{fixturedef.argname}".lstrip(":"),
                )
                own = taken - (self._in_fixtures - outer)  # without the fixtures that it requested
                self.fixtures[name] = self.fixtures.get(name, 0.0) + own
                self._in_fixtures = outer + taken

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        own, tests, fixtures = getattr(node, "workeroutput", {}).get("cpu", (0.0, {}, {}))
        self.workers += own
        self.tests |= tests
        for name, taken in fixtures.items():
            self.fixtures[name] = self.fixtures.get(name, 0.0) + taken

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["cpu"] = seconds(), self.tests, self.fixtures
        elif session.exitstatus == 0 and self.too_much():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def total(self):
        # Workers, which are children of this process, report their own time.
        return self.workers + (sum(os.times()[:2]) if self.workers else seconds())

    def too_much(self):
        """Return one line for each bound that was exceeded."""
        most, each = (
            self.config.getoption(name) or float("inf") for name in ("max_cpu", "max_test_cpu")
        )
        slow = {name: taken for name, taken in self.tests.items() if taken > each}
        lines = [
            f"{name} took {taken:.1f} CPU seconds: mark it slow" for name, taken in slow.items()
        ]
        if self.total() > most:
            lines.append(f"the run took {self.total():.0f} CPU seconds, more than {most:.0f}")
        return lines

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.write_line(f"CPU time: {self.total():.0f} s")
        shown = (
            {"test": self.tests, "fixture": self.fixtures}
            if self.config.getoption("cpu_times")
            else {}
        )
        for kind, times in shown.items():
            for name, taken in sorted(times.items(), key=lambda pair: -pair[1])[:SHOWN]:
                terminalreporter.write_line(f"{taken:8.2f} s  {kind}  {name}")
        for line in self.too_much():
            terminalreporter.write_line(f"error: {line}", red=True)
