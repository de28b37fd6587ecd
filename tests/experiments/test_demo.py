"""Check what the demo shows: both agents learn where to go back to, and the LSTMs beside them do
not.
"""

import re

import pytest
from commands import succeed, tool


@pytest.mark.slow
def test_both_agents_solve_their_task():
    shown = succeed(tool("demo")).out
    found = [float(share) for share in re.findall(r"(?:lstm|dynamic:\d+) +(\d+\.\d+)%", shown)]
    assert found[0] < 60 and found[2] < 5
    assert min(found[1], found[3]) > 98
    rows = re.findall(r"│ (\d+) +│ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │", shown)
    assert len(rows) == 4 and sum(copied == answer for *_, copied, answer in rows) >= 3
