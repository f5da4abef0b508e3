import pytest

pytest.importorskip("onnxruntime", reason="runs exported ONNX files: pip install 'electra_jax[onnx]'")

import onnx_files


def test_the_last_section_of_a_card_has_each_file_once():
    report = {
        "file": "model.onnx",
        "megabytes": 1.5,
        "accuracy": 70.0,
        "differs": 0.0,
        "one_ms": 0.5,
        "per_second": 9.0,
    }
    card = onnx_files.with_files("# A model\n", [report])
    assert card == onnx_files.with_files(card, [report])
    assert card == (
        "# A model\n\n## ONNX files\n\nOn the development set; `differs` is from `model.onnx`.\n\n"
        "| file | megabytes | accuracy | differs |\n| --- | --- | --- | --- |\n| model.onnx | 1.5 | 70.0 | 0.0 |\n"
    )
