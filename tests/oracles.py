"""Other libraries to check against. torchvision's wheel misses two operators beside a CPU-only torch: declare them."""

import torch


def torchvision_v2():
    try:
        import torchvision
    except RuntimeError as error:
        if "nms" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        torchvision_v2.keep = library  # the definitions live as long as this object
        import torchvision
    import torchvision.transforms.v2

    return torchvision.transforms.v2
