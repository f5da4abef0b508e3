"""What the benchmark of preparation says about machines with more cores."""

import pytest

pytest.importorskip("psutil", reason="psutil is an extra")
import preparation

STAGES = {"read": 10.0, "leave": 0.0, "decide": 0.01, "take": 0.0, "write": 90.0, "encode": 80.0}


def test_the_cores_share_the_work_of_all_stages():
    assert preparation.forecast(STAGES, 1) == pytest.approx(80 / 100.01)
    assert preparation.forecast(STAGES, 8) == pytest.approx(80 / 100.01)


def test_the_slowest_stage_decides():
    slow_reading = {**STAGES, "read": 1000.0}
    assert preparation.forecast(slow_reading, 4) == pytest.approx(80 / 1000 / 4)  # one reader
    assert preparation.forecast({**STAGES, "decide": 50.0}, 64) == pytest.approx(80 / 50 / 64)
