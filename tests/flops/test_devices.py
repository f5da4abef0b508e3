import pytest

from electra_jax.flops import devices


@pytest.mark.parametrize(
    ("kind", "bfloat16", "float32"),
    [
        ("TPU v4", 275e12, 275e12),
        ("TPU v5 lite", 197e12, 197e12),
        ("TPU v6 lite", 918e12, 918e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, 156e12),
        ("NVIDIA H100 80GB HBM3", 989e12, 494e12),
        ("NVIDIA H100 PCIe", 756e12, 378e12),
        ("NVIDIA H200 NVL", 835e12, 417e12),
        ("NVIDIA H200", 989e12, 494e12),
        ("NVIDIA B200", 2250e12, 1125e12),
    ],
)
def test_the_peak_of_one_device(kind, bfloat16, float32):
    assert devices.peak(kind, "bfloat16") == bfloat16
    assert devices.peak(kind, "float32") == float32


@pytest.mark.parametrize(
    ("as_jax_names_it", "name"), [("TPU v5 lite", "TPU v5e"), ("TPU v5", "TPU v5p"), ("TPU v6 lite", "TPU v6e")]
)
def test_other_names_of_tpus(as_jax_names_it, name):
    assert devices.known(as_jax_names_it) == name
    assert devices.peak(as_jax_names_it, "bfloat16") == devices.peak(name, "bfloat16")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H200", "NVIDIA H200"),
        ("h100", "NVIDIA H100"),
        ("H200 NVL", "NVIDIA H200 NVL"),
        ("v3", "TPU v3"),
        ("7x", "TPU7x"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100"),
        ("H", None),
        ("TPU", None),
        ("", None),
        ("L4", "NVIDIA L4"),
        ("H20", None),
    ],
)
def test_an_unambiguous_part_of_a_name_is_enough(text, name):
    assert devices.find(text) == name


@pytest.mark.parametrize(
    "kind",
    [
        *("cpu", "", "TPU", "TPU v99", "TPU v4 lite", "NVIDIA", "NVIDIA H20", "NVIDIA L40S"),
        *("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
    ],
)
def test_an_unknown_device_has_no_peak(kind):
    assert devices.known(kind) is None
    assert devices.peak(kind, "bfloat16") is None


def test_a_precision_without_an_entry_has_no_peak():
    assert devices.peak("TPU v4", "float64") is None


def test_every_device_has_a_peak_in_both_precisions():
    for kind, peaks in devices.PEAK_FLOPS.items():
        assert devices.known(kind) == kind
        assert set(peaks) == {"bfloat16", "float32"}
        assert min(peaks.values()) > 0


def test_chips_of_two_devices():
    """With them the chips' peaks are those of the makers' sheets."""
    assert devices.DEVICES_A_CHIP == {"TPU v2": 2, "TPU v3": 2, "TPU7x": 2}
    chips = {name: count * devices.peak(name, "bfloat16") for name, count in devices.DEVICES_A_CHIP.items()}
    assert chips == {"TPU v2": 45e12, "TPU v3": 123e12, "TPU7x": 2307e12}
