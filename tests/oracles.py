"""Other libraries to compare with."""

from maxup.integrations.torchvision import import_torchvision


def torchvision_v2():
    import_torchvision()
    import torchvision.transforms.v2

    return torchvision.transforms.v2


def agrees_with_pytorchcv(name, theirs):
    """Check that a network with pytorchcv's weights computes the same, and return its parameter count."""
    import torch

    from maxup.lab.models import create_model

    import_torchvision()
    from pytorchcv.model_provider import get_model

    oracle, model = get_model(theirs).eval(), create_model(name, shape=(3, 32, 32), num_classes=10).eval()
    weights = [v + 0.01 * torch.randn_like(v) if v.ndim == 1 else v for v in oracle.state_dict().values()]
    weights = [v.abs() + 0.5 if v.ndim == 1 else v for v in weights]  # including BatchNorm, with variances above 0
    for net in (oracle, model):
        net.load_state_dict(dict(zip(net.state_dict(), weights, strict=True)))
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model(x), oracle(x), rtol=1e-4, atol=1e-4)
    return sum(p.numel() for p in model.parameters())
