"""tests/parity/test_onnx.py runs the files; it needs PyTorch, these tests do not."""

import sys

import pytest

from electra_jax import models
from electra_jax.commands import export
from electra_jax.config import errors


@pytest.mark.parametrize("package", ["onnxruntime", "onnxscript", "torch", "transformers"])
def test_a_missing_package_is_one_line_before_any_work(package, small_run, tmp_path, monkeypatch, capsys):
    for name in ("onnxruntime", "onnxscript", "torch", "transformers"):
        monkeypatch.setitem(sys.modules, name, None if name == package else sys)
    monkeypatch.setattr(models.run_export, "load_run_checkpoint", lambda *_: pytest.fail("it begins"))
    assert errors.run(export.main, [f"--workdir={small_run}", f"--output={tmp_path}/out", "--onnx"]) == 2
    assert capsys.readouterr().err == f"error: ONNX files need {package}; pip install 'electra_jax[onnx]'\n"
    assert list(tmp_path.iterdir()) == []
