import importlib.util
import types

import pytest
from cli_runs import ROOT

from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.flops import devices as device_table
from electra_jax.planning import gpus, hlo, targets
from electra_jax.planning.estimate import estimate
from electra_jax.planning.traffic import count_traffic


@pytest.fixture
def plugin(monkeypatch):
    """JAX's CUDA plugin and its topologies, without their compiler."""
    from jax.experimental import topologies

    def describe(platform, target_config, topology):
        asked.append((platform, target_config, topology))
        name = target_config.rpartition('device_description_str: "')[2].partition('"')[0]
        number = int(topology.rpartition("x")[2])
        return types.SimpleNamespace(
            devices=[types.SimpleNamespace(device_kind=name, process_index=0) for _ in range(number)]
        )

    asked: list[tuple[str, str, str]] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "jax_cuda12_plugin" or None)
    monkeypatch.setattr(topologies, "get_topology_desc", describe)
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    return asked


@pytest.mark.parametrize(
    ("topology", "kind", "number"),
    [
        ("h100:8", "NVIDIA H100", 8),
        ("h100", "NVIDIA H100", 1),
        ("a100-40:2", "NVIDIA A100", 2),
        ("rtx4090:1", "NVIDIA GeForce RTX 4090", 1),
    ],
)
def test_gpus_by_name_and_number(plugin, topology, kind, number):
    found = targets.find_target(topology)
    assert (found.kind, len(found.devices), found.hosts, found.clock) == (kind, number, 1, None)
    assert plugin[0][0] == "cuda"
    assert plugin[0][2] == f"1x1x{number}"


@pytest.mark.parametrize("topology", ["h100:0", "h100:9", "h100:2x2", "l4:-1"])
def test_gpus_that_cannot_be(plugin, topology):
    with pytest.raises(UserError, match=f"--topology={topology} is invalid: expected one of a100-40, .* 1 to 8 GPUs"):
        targets.find_target(topology)


def test_a_device_of_another_name_and_slices_of_gpus(plugin):
    with pytest.raises(UserError, match=r"--topology=h300:8 is invalid: expected a TPU slice, .* or GPUs"):
        targets.find_target("h300:8")
    with pytest.raises(UserError, match="--slices=2 is for TPUs; --topology=h100:8 is one machine with GPUs"):
        targets.find_target("h100:8", 2)


def test_without_the_plugin_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"CUDA plugin.* is not installed: run pip install 'electra_jax\[cuda\]'"):
        targets.find_target("h100:8")


def test_a_plugin_that_refuses_is_one_line(plugin, monkeypatch):
    from jax.experimental import topologies

    def refuse(**_):
        raise NotImplementedError("no topologies\nhere")

    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    with pytest.raises(UserError, match=r"cannot compile for --topology=h100:8 here \(no topologies\): install"):
        targets.find_target("h100:8")


def test_a_gpu_has_the_memory_that_jax_allocates(monkeypatch, plugin):
    whole = gpus.GPUS["h100"].memory
    assert targets.find_target("h100").memory == 0.75 * whole
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", ".9")
    assert targets.find_target("h100").memory == pytest.approx(0.9 * whole)
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "all")
    with pytest.raises(UserError, match="XLA_CLIENT_MEM_FRACTION=all is invalid"):
        targets.find_target("h100")


def test_the_gpus_agree_with_their_data_sheets():
    float32 = {"a100-40": 19.5, "a100-80": 19.5, "h100": 67, "h200": 67, "l4": 30.3, "rtx4090": 82.6}  # TFLOP/s
    gigabytes = {"a100-40": 40, "a100-80": 80, "h100": 80, "h200": 141, "l4": 24, "rtx4090": 24}
    for name, gpu in gpus.GPUS.items():
        assert gpu.vector / 1e12 == pytest.approx(float32[name], rel=2e-3)
        assert 0.9 < gpu.memory / 1e9 / gigabytes[name] < 1.07
        assert device_table.known(gpu.name) is not None


def test_clocks_of_tpus_are_the_published_ones():
    published = {"TPU v2": 0.7, "TPU v3": 0.94, "TPU v4": 1.05, "TPU v5e": 1.5, "TPU v5p": 1.75, "TPU v6e": 1.75}
    for kind, clock in published.items():
        assert device_table.clock(kind) / 1e9 == pytest.approx(clock, rel=0.02)


@pytest.mark.parametrize(("topology", "tpu"), [("v3:4x4", True), ("tpu7x:2x2x1", True), ("h100:8", False)])
def test_what_is_a_tpu(topology, tpu):
    assert targets.is_tpu(topology) is tpu


def test_a_tpu_comes_from_its_slice(monkeypatch):
    device = types.SimpleNamespace(device_kind="TPU v5 lite", process_index=0)
    monkeypatch.setattr(targets, "slice_of", lambda topology, slices: [device] * 4)
    found = targets.find_target("v5e:2x2")
    assert (found.kind, found.memory, found.packed16) == ("TPU v5e", device_table.TPU_SPECS["TPU v5e"].memory, False)
    assert found.vector == pytest.approx(4 * 8 * 128 * 1.5e9, rel=0.01)


# What XLA makes of a product, a sum over GPUs and a copied slice for an H100, with shorter shapes and attributes.
CUDA = """\
HloModule jit_f, is_scheduled=true, num_partitions=8

%fused_dynamic_slice (p.0: bf16[6,10,20], n.0: s32[]) -> bf16[1,10,20] {
  %p.0 = bf16[6,10,20]{2,1,0} parameter(0), metadata={scheduling_name="p.0"}
  %zero.0 = s32[] constant(0)
  %n.0 = s32[] parameter(1)
  ROOT %cut = bf16[1,10,20]{2,1,0} dynamic-slice(%p.0, %n.0, %zero.0, %zero.0), dynamic_slice_sizes={1,10,20}
}

%add (x: bf16[], y: bf16[]) -> bf16[] {
  %x = bf16[] parameter(0)
  %y = bf16[] parameter(1)
  ROOT %s = bf16[] add(%x, %y)
}

%body (s.1: (s32[], bf16[6,10,20], bf16[20,20])) -> (s32[], bf16[6,10,20], bf16[20,20]) {
  %s.1 = (s32[], bf16[6,10,20]{2,1,0}, bf16[20,20]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s.1), index=0
  %all = bf16[6,10,20]{2,1,0} get-tuple-element(%s.1), index=1
  %w = bf16[20,20]{1,0} get-tuple-element(%s.1), index=2
  %slice = bf16[1,10,20]{2,1,0} fusion(%all, %i), kind=kCustom, calls=%fused_dynamic_slice, metadata={op_name="a/slice"}
  %flat = bf16[10,20]{1,0} bitcast(%slice)
  %product = (bf16[20,20]{1,0}, s8[33554432]{0}) custom-call(%flat, %flat, %w), \
custom_call_target="__cublas$lt$matmul", output_to_operand_aliasing={{0}: (2, {})}, metadata={op_name="a/dot"}
  %new = bf16[20,20]{1,0} get-tuple-element(%product), index=0
  ROOT %t = (s32[], bf16[6,10,20]{2,1,0}, bf16[20,20]{1,0}) tuple(%i, %all, %new)
}

%cond (s.2: (s32[], bf16[6,10,20], bf16[20,20])) -> pred[] {
  %s.2 = (s32[], bf16[6,10,20]{2,1,0}, bf16[20,20]{1,0}) parameter(0)
  ROOT %lt = pred[] constant(true)
}

ENTRY %main_spmd (a: (s32[], bf16[6,10,20], bf16[20,20])) -> bf16[20,20] {
  %a = (s32[], bf16[6,10,20]{2,1,0}, bf16[20,20]{1,0}) parameter(0)
  %loop = (s32[], bf16[6,10,20]{2,1,0}, bf16[20,20]{1,0}) while(%a), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"6"},"known_init_step":{"init":"0","step":"1"}}
  %sum = bf16[20,20]{1,0} get-tuple-element(%loop), index=2
  %all-reduce-start = bf16[20,20]{1,0} all-reduce-start(%sum), channel_id=2, \
replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0'}, to_apply=%add, metadata={op_name="a/sum"}
  ROOT %all-reduce-done = bf16[20,20]{1,0} all-reduce-done(%all-reduce-start)
}
"""


def test_the_traffic_of_a_program_for_gpus_is_counted_as_by_hand():
    counted = count_traffic(hlo.Program(CUDA), 8)
    moved = {each.source: each.bytes for each in counted.moved}
    row, weights = 2 * 10 * 20, 2 * 20 * 20
    assert moved == {
        "a/slice": 6 * (row + 4 + row),
        "a/dot": 6 * (2 * row + weights + weights),  # it adds to the sum in place; 32 MiB of scratch are not counted
        "a/sum": 2 * weights,
    }
    (reduce,) = counted.collectives
    assert (reduce.kind, reduce.devices, reduce.sent) == ("all-reduce", 8, 2 * 7 / 8 * weights)


# The backward call of cuDNN's attention: queries, keys, values, sums, the result's gradient, mask and result.
CUDNN = """\
HloModule jit_f, is_scheduled=true

ENTRY %main (q: bf16[8,512,12,64], s: f32[8,12,512], m: bf16[8,1,512,512]) -> bf16[8,12,512,64] {
  %q = bf16[8,512,12,64]{3,2,1,0} parameter(0)
  %s = f32[8,12,512]{2,1,0} parameter(1)
  %m = bf16[8,1,512,512]{3,2,1,0} parameter(2)
  %call = (bf16[8,12,512,64]{3,1,2,0}, bf16[8,12,512,64]{3,1,2,0}, bf16[8,12,512,64]{3,1,2,0}, \
bf16[8,1,512,512]{3,2,1,0}, u8[12582912]{0}) custom-call(%q, %q, %q, %s, %q, /*index=5*/%m, %q), \
custom_call_target="__cudnn$fmhaScaleBiasSoftmaxBackward", metadata={op_name="a/attention/bwd"}
  ROOT %dq = bf16[8,12,512,64]{3,1,2,0} get-tuple-element(%call), index=0
}
"""


def test_a_call_of_cudnn_moves_its_operands_and_results_without_scratch():
    (call,) = count_traffic(hlo.Program(CUDNN), 1).moved
    states, sums, mask = 2 * 8 * 512 * 12 * 64, 4 * 8 * 12 * 512, 2 * 8 * 512 * 512
    assert call.bytes == 8 * states + sums + 2 * mask  # the gradient of the mask is written, too


########## With the compiler for GPUs ##################################################################################

needs_plugin = pytest.mark.skipif(
    not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)),
    reason="JAX's CUDA plugin is in the extra cuda",
)


@pytest.mark.aot
@needs_plugin
@pytest.mark.parametrize(("topology", "devices"), [("h100:8", 8), ("l4", 1)])
def test_a_small_step_compiles_for_gpus(topology, devices):
    config = config_file.load(ROOT / "configs" / "small.py", "runlocal")
    config.batch_size, config.model.dtype = 64, "bfloat16"
    found = estimate(config, topology)
    assert (found.fits, found.devices, found.hosts) == (True, devices, 1)
    assert set(found.seconds) == {"compute", "vector", "memory", "interconnect"}
    assert found.forecast
    assert found.step_seconds == found.forecast_seconds >= found.seconds[found.bound] > 0
    assert min(found.moved, found.memory["temporary"]) > 0
    assert ("all-reduce" in found.collectives) == (devices > 1)
    products = [name for _, name in found.largest if name.startswith("encoder/layers/ffn_in")]
    assert products == ["encoder/layers/ffn_in, backward", "encoder/layers/ffn_in, forward"]


@pytest.fixture
def programs(monkeypatch):
    """The programs that plans are made of."""
    made, real = [], hlo.Program

    def parse(text):
        made.append(real(text))
        return made[-1]

    monkeypatch.setattr(hlo, "Program", parse)
    return made


OF_CUDNN, OF_TRITON = "__cudnn$fmha", "__gpu$xla.gpu.triton"


def calls(program, target: str = OF_CUDNN) -> dict[str, list[tuple[str, float]]]:
    """Calls of attention's kernels: the shapes of their results, and how often each runs, by forward and backward."""
    found = {"forward": [], "backward": []}
    for computation, times in program.executed():
        for each in computation.values():
            if f'custom_call_target="{target}' in each.attributes:
                names = ("Backward", "attention_backward")
                direction = "backward" if any(name in each.attributes for name in names) else "forward"
                found[direction].append((hlo.shapes(each.result)[0], times))
    return found


@pytest.mark.aot
@needs_plugin
def test_attention_on_gpus_is_fused(programs):
    """A forward kernel runs once a layer, and no device sees the examples or heads of another."""
    config = config_file.load(ROOT / "configs" / "small.py", "runlocal")
    config.batch_size, config.model.dtype, config.model.remat = 64, "bfloat16", "dots"
    config.data.seq_length = config.model.max_length = 128
    config.mesh.update(data=2, fsdp=2, tensor=2)
    config.model.attention = "plain"
    plain = estimate(config, "h100:8")
    config.model.attention = "auto"
    dropped = estimate(config, "h100:8")
    config.model.attention_dropout = 0.0
    fused = estimate(config, "h100:8")
    assert [plan.settings["attention"] for plan in (plain, dropped, fused)] == ["plain", "fused", "fused"]
    none = {"forward": [], "backward": []}
    assert [calls(programs[0], target) for target in (OF_CUDNN, OF_TRITON)] == [none, none]
    rows = 64 // 4

    def both(found):
        """What the calls of the two networks return, forward and backward."""
        for direction in found.values():
            shapes = {shape for shape, _ in direction}
            assert len(shapes) == 1
            assert sum(times for _, times in direction) == 2 * config.model.layers
        return [direction[0][0] for direction in found.values()]

    assert both(calls(programs[1], OF_TRITON)) == [f"bf16[{rows},128,1,32]", f"bf16[{rows},128,3,1,32]"]
    assert both(calls(programs[2])) == [f"bf16[{rows},1,128,32]"] * 2
    for kernels in (dropped, fused):
        assert kernels.moved < 0.9 * plain.moved
        assert kernels.memory["temporary"] < plain.memory["temporary"]
        assert kernels.flops["model"] == plain.flops["model"]


@pytest.mark.aot
@needs_plugin
def test_no_layer_on_a_gpu_keeps_its_mask(programs):
    config = config_file.load(ROOT / "configs" / "small.py", "runlocal")
    config.batch_size, config.model.dtype, config.model.encoder = 64, "bfloat16", "modernbert"
    config.model.unroll = "false"
    found = estimate(config, "h100:1")
    assert found.settings["attention"] == "fused"
    assert [times for direction in calls(programs[0]).values() for _, times in direction] == [config.model.layers] * 4
    length = config.data.seq_length
    text = " ".join(each.result for computation, _ in programs[0].executed() for each in computation.values())
    assert f"bf16[64,1,{length},{length}]" in text
    assert f"bf16[{config.model.layers},64,1,{length},{length}]" not in text
