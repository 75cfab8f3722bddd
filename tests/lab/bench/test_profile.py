"""Where the time of a step goes: kinds of kernels, and a step whose operations are known."""

import pytest
import torch

from maxup.lab.bench.profile import IDLE, KINDS, MOST, OTHER, kind, profile_step, shares

ATTENTION, PRODUCTS = KINDS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64", PRODUCTS),
        ("cudnn::engines_precompiled::nchwToNhwcKernel", OTHER),
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT", PRODUCTS),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>", PRODUCTS),
        ("void flash::flash_fwd_kernel<...>", ATTENTION),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x64", ATTENTION),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", ATTENTION),
        ("aten::mm", PRODUCTS),
        ("aten::convolution_backward", PRODUCTS),
        ("triton_per_fused_native_layer_norm_4", OTHER),
        ("Memcpy DtoD (Device -> Device)", OTHER),
        ("conv_norm_relu", PRODUCTS),
    ],
)
def test_kinds_by_name(name, expected):
    assert kind(name) == expected


def test_operations_are_counted():
    a = torch.rand(600, 600)
    found = profile_step(lambda: a @ a @ a @ a, "cpu")
    assert {kernel["name"]: kernel["count"] for kernel in found["kernels"]}["aten::mm"] == 3
    assert found["seconds"][PRODUCTS] > 0
    assert len(found["kernels"]) <= MOST


def test_shares_sum_to_one():
    profile = {"seconds": {PRODUCTS: 0.5, OTHER: 0.25}}
    assert shares(profile, 1.0) == {PRODUCTS: 0.5, OTHER: 0.25, IDLE: 0.25}
    assert shares(profile, 0.5) == {PRODUCTS: pytest.approx(2 / 3), OTHER: pytest.approx(1 / 3), IDLE: 0.0}
