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


def test_numbers_are_of_the_last_number_of_workers():
    measured = {
        1: [(10.0, 9.0, 20.0, 18.0, 900.0)] * 3,
        2: [(5.0, 8.0, 10.0, 16.0, 400.0), (4.0, 8.0, 10.0, 20.0, 500.0), (5.0, 9.0, 20.0, 16.0, 450.0)],
    }
    found = preparation.report(measured, 100.0, 2, STAGES)
    assert found["ours_mb_per_second"] == [10.0, 10.0, 5.0]
    assert found["ratio_of_medians"] == found["by_workers"][2]["ratio"] == 0.5
    assert found["by_workers"][1] == {"library": 10.0, "ours": 5.0, "ratio": 0.5}
    assert (found["ratio_of_processor_time"], found["peak_memory_mb"]) == (0.5, 500)
