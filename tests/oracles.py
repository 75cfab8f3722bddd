"""Other libraries to check against."""

from maxup.models.external import import_torchvision


def torchvision_v2():
    import_torchvision()
    import torchvision.transforms.v2

    return torchvision.transforms.v2
