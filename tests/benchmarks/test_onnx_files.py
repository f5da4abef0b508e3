import pytest

pytest.importorskip("onnxruntime", reason="runs exported ONNX files: pip install 'electra_jax[onnx]'")

import onnx_files


def test_a_section_of_the_card_has_each_file_once():
    report = {
        "file": "model.onnx",
        "megabytes": 1.5,
        "accuracy": 70.0,
        "differs": 0.0,
        "one_ms": 0.5,
        "per_second": 9.0,
    }
    card = onnx_files.with_onnx_section("# A model\n", [report], "regression")
    assert card == onnx_files.with_onnx_section(card, [report], "regression")
    assert card == (
        "# A model\n\n## ONNX files\n\nOn the development set; `differs` is the mean difference from the numbers of "
        "`model.onnx`, in standard deviations.\n\n"
        "| file | megabytes | accuracy | differs |\n| --- | --- | --- | --- |\n| model.onnx | 1.5 | 70.0 | 0.0 |\n"
    )
    more = f"{card}\n## Mine\n\ntext\n"
    assert onnx_files.with_onnx_section(more, [report], "regression") == more
