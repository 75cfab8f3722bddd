import pytest
import torch
from torch.nn import functional as F

from maxup.lab.models import create_model
from maxup.lab.models.speednet import SpeedNet, identity_conv, whitening


def correlated(n=200, side=12):
    """Images whose neighboring pixels and channels are similar, with a mean that is not 0."""
    smooth = F.avg_pool2d(torch.randn(n, 3, side + 2, side + 2), 3, 1)
    return 0.5 + torch.einsum("dc,nchw->ndhw", torch.tensor([[1, 0.5, 0], [0.2, 1, 0.3], [0, 0.7, 2]]), smooth)


@pytest.mark.parametrize("kernel", [2, 3])
def test_responses_to_whitening_filters_are_uncorrelated_with_mean_square_1(kernel):
    images = correlated()
    filters = whitening(images, kernel, eps=0)
    responses = F.conv2d(images.double(), filters.double()).transpose(0, 1).flatten(1)  # (filters, patches)
    moments = responses @ responses.T / responses.shape[1]
    torch.testing.assert_close(moments, torch.eye(3 * kernel**2, dtype=torch.double), atol=1e-2, rtol=0)


def test_eps_limits_the_gain_of_directions_without_variance():
    images = correlated()[:, :1].expand(-1, 3, -1, -1)  # gray: 8 of 12 directions have no variance
    norms = whitening(images, 2).flatten(1).norm(dim=1)
    assert norms[:5].diff().min() > 0  # the largest variance first
    torch.testing.assert_close(norms[-8:], torch.full((8,), 5e-4**-0.5), rtol=1e-2, atol=0)


def test_the_whitening_layer_has_both_signs_and_is_fixed():
    model = create_model("speednet", shape=(3, 12, 12), num_classes=4, widths=[4, 5])
    images = correlated()
    model.init_from_images(images)
    filters = whitening(images, 2)
    assert torch.equal(model.whiten.weight, torch.cat([filters, -filters]))
    fixed = [name for name, p in model.named_parameters() if not p.requires_grad]
    norms = [f"blocks.{b}.norms.{i}.weight" for b in range(2) for i in range(2)]
    assert sorted(fixed) == sorted(["whiten.weight", *norms])
    assert all(torch.all(dict(model.named_parameters())[name] == 1) for name in norms)


@pytest.mark.parametrize(("inputs", "outputs"), [(3, 7), (6, 6), (8, 5)])
def test_a_convolution_starts_as_the_identity(inputs, outputs):
    x = torch.randn(2, inputs, 5, 5)
    torch.testing.assert_close(identity_conv(inputs, outputs)(x)[:, :inputs], x[:, :outputs])


def plain_forward(s, x, blocks, depth):
    """The network in evaluation mode, written with functions of its state."""
    x = F.gelu(F.conv2d(x, s["whiten.weight"], s["whiten.bias"]))
    for b in range(blocks):
        for i in range(depth):
            x = F.conv2d(x, s[f"blocks.{b}.convs.{i}.weight"], padding=1)
            x = F.max_pool2d(x, 2) if i == 0 else x
            mean, var, bias = (
                s[f"blocks.{b}.norms.{i}.{name}"][:, None, None] for name in ("running_mean", "running_var", "bias")
            )
            x = (x - mean) / var.sqrt() + bias
            if i == 0:
                x = shortcut = F.gelu(x)
            else:
                x = F.gelu(x + shortcut if i > 1 and i == depth - 1 else x)
    return x.flatten(2).max(2).values @ s["head.weight"].T / 9


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_forward_pass_against_plain_functions(depth):
    model = SpeedNet(3, 4, [5, 6], depth)
    for p in model.parameters():
        p.data += 0.1 * torch.randn_like(p) * p.requires_grad
    x = torch.randn(6, 3, 12, 12)
    model(x)  # sets running statistics
    torch.testing.assert_close(model.eval()(x), plain_forward(model.state_dict(), x, 2, depth))


@pytest.mark.parametrize(
    ("shape", "args", "message"),
    [
        ((3, 8, 32), {}, "3 blocks need images .* of at least 9 x 9 pixels, but your examples have shape"),
        ((5,), {}, "of at least 9 x 9 pixels"),
        ((3, 32, 32), {"widths": 64}, "must be a list of widths"),
        ((3, 32, 32), {"widths": []}, "must be a list of widths"),
    ],
)
def test_invalid_arguments(shape, args, message):
    with pytest.raises(ValueError, match=message):
        create_model("speednet", shape=shape, num_classes=4, **args)


def test_the_smallest_image_fits():
    assert create_model("speednet", shape=(1, 9, 9), num_classes=4)(torch.zeros(2, 1, 9, 9)).shape == (2, 4)


@pytest.mark.slow
def test_compiled_gradients_in_half_precision_are_finite_and_close_to_float32():
    torch.manual_seed(0)
    model = create_model("speednet", shape=(3, 12, 12), num_classes=4, widths=[8, 8])
    x, y = torch.randn(64, 3, 12, 12), torch.arange(64) % 4

    def gradient(call, half):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = F.cross_entropy(call(x), y)
        gradients = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
        return torch.cat([g.flatten() for g in gradients])

    expected = gradient(model, False)
    assert (gradient(torch.compile(model), True) - expected).norm() < 0.2 * expected.norm()
