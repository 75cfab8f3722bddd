import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image, ImageOps

from maxup.lab.data.decode import center_crop, random_box, random_crop, read_rgb, why_unreadable
from tests.lab.data.fake import cut_short
from tests.oracles import torchvision_v2

sides = st.integers(1, 600)


def picture(width, height, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Image.fromarray(torch.randint(256, (height, width, 3), generator=g, dtype=torch.uint8).numpy())


def as_bytes(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@settings(max_examples=200)
@given(sides, sides, st.integers(0, 2**40))
def test_random_boxes_are_torchvision_s(width, height, seed):
    """With the same seed, also if no draw fits and the center is taken."""
    torchvision_v2()
    from torchvision.transforms import RandomResizedCrop

    left, top, right, bottom = random_box(width, height, torch.Generator().manual_seed(seed))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        theirs = RandomResizedCrop.get_params(Image.new("L", (width, height)), (0.08, 1.0), (3 / 4, 4 / 3))
    assert (top, left, bottom - top, right - left) == theirs


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_random_crop_is_the_box_resized(interpolation):
    image = picture(70, 50)
    box = random_box(70, 50, torch.Generator().manual_seed(3))
    kind = getattr(Image.Resampling, interpolation.upper())
    expected = as_bytes(image.crop(box).resize((24, 24), kind))
    assert torch.equal(random_crop(image, 24, torch.Generator().manual_seed(3), interpolation), expected)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (60, 61), (33, 200), (224, 224), (7, 9)])
@pytest.mark.parametrize(("size", "fraction"), [(224, 0.875), (60, 0.949), (45, 1.0)])
def test_evaluation_is_torchvision_s_resize_and_center_crop(width, height, size, fraction, interpolation):
    transforms = torchvision_v2()
    kind = getattr(transforms.InterpolationMode, interpolation.upper())
    theirs = transforms.Compose([transforms.Resize(int(size / fraction), kind), transforms.CenterCrop(size)])
    image = picture(width, height)
    assert torch.equal(center_crop(image, size, fraction, interpolation), as_bytes(theirs(image)))


def test_every_kind_of_picture_becomes_rgb(tmp_path):
    gray = np.arange(256, dtype=np.uint8).reshape(16, 16)
    three = np.repeat(gray[:, :, None], 3, axis=2)
    color = np.array(picture(16, 16))
    cases = {"rgb.png": (Image.fromarray(color), color), "gray.png": (Image.fromarray(gray), three)}
    wide = Image.fromarray(gray.astype(np.uint16) * 257)  # 16 bits: 0 ... 65535
    cases |= {"wide.png": (wide, three), "wide.tif": (wide, three)}
    cases["bits.png"] = (Image.fromarray(gray > 99), np.where(three > 99, np.uint8(255), np.uint8(0)))
    with_alpha = Image.fromarray(color).convert("RGBA")
    with_alpha.putalpha(7)
    cases["alpha.png"] = (with_alpha, color)
    palette = Image.fromarray(gray).convert("P")
    cases["palette.png"] = (palette, np.array(palette.convert("RGB")))
    # CMYK by hand: a channel is the light that its ink and black let through.
    ink = np.array(picture(16, 16, seed=1))
    cmyk = Image.fromarray(np.dstack([ink, gray]), mode="CMYK")
    cases["ink.tif"] = (cmyk, ((255 - ink.astype(int)) * (255 - gray[:, :, None].astype(int)) / 255))
    for name, (image, pixels) in cases.items():
        image.save(tmp_path / name)
        found = read_rgb(tmp_path / name)
        assert (found.mode, found.size) == ("RGB", (16, 16)), name
        assert np.abs(np.array(found).astype(float) - pixels).max() <= (1 if name == "ink.tif" else 0), name
    palette.save(tmp_path / "glass.png", transparency=bytes(256))  # PIL would warn, and warnings are errors here
    assert np.array_equal(np.array(read_rgb(tmp_path / "glass.png")), cases["palette.png"][1])
    cmyk.save(tmp_path / "ink.jpg")
    assert read_rgb(tmp_path / "ink.jpg").mode == "RGB"


def test_damaged_files_raise(tmp_path):
    picture(50, 50).save(tmp_path / "short.jpeg")
    cut_short(tmp_path / "short.jpeg")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("not a picture")
    for name in ("short.jpeg", "empty.png", "text.jpg", "nowhere.jpg"):
        with pytest.raises(OSError, match=r"."):
            read_rgb(tmp_path / name)


@pytest.mark.parametrize(("width", "height"), [(2, 60000), (60000, 2), (1, 9)])
def test_a_stripe_is_cropped_before_it_is_resized(width, height, monkeypatch):
    sizes, resize = [], Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda image, size, *more: sizes.append(size) or resize(image, size, *more)
    )
    assert center_crop(Image.new("RGB", (width, height), (1, 2, 3)), 16, 0.875, "bilinear")[:, 8, 8].tolist() == [
        1,
        2,
        3,
    ]
    assert max(sizes[0]) == 8 * 18


def test_postscript_is_not_opened(tmp_path, monkeypatch):
    """Pillow passes PostScript to Ghostscript, whatever the file name is. PostScript is a program."""
    from PIL import EpsImagePlugin

    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", str(ghostscript))
    evil = tmp_path / "evil.jpg"
    evil.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(OSError, match="cannot identify image"):
        read_rgb(evil)
    assert not (tmp_path / "ran").exists()


def test_every_suffix_has_its_format(tmp_path):
    """Every file that `scan` takes as an image can be opened."""
    from maxup.lab.data.folder import SUFFIXES

    for suffix in SUFFIXES:
        picture(8, 6).save(tmp_path / f"a{suffix}")
        assert read_rgb(tmp_path / f"a{suffix}").size == (8, 6)


def png_header(width, height):
    """A PNG whose header claims a size, without pixels."""
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(13_000, 13_000), (2, 60_000_000), (100_001, 1000)])
def test_an_image_of_too_many_pixels_is_not_decoded(tmp_path, monkeypatch, width, height):
    (tmp_path / "a.png").write_bytes(png_header(width, height))
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", lambda self: pytest.fail("it was decoded"))
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", None)  # some packages set this
    with pytest.raises(ValueError, match=rf"a\.png has {width} x {height} pixels, but the limit is 89,478,485"):
        read_rgb(tmp_path / "a.png")


# The pixel at (x, y) of the upright image is stored at this place in a file of the orientation, by the EXIF standard.
STORED = {
    1: lambda x, y, w, h: (x, y),
    2: lambda x, y, w, h: (w - 1 - x, y),
    3: lambda x, y, w, h: (w - 1 - x, h - 1 - y),
    4: lambda x, y, w, h: (x, h - 1 - y),
    5: lambda x, y, w, h: (y, x),
    6: lambda x, y, w, h: (y, w - 1 - x),
    7: lambda x, y, w, h: (h - 1 - y, w - 1 - x),
    8: lambda x, y, w, h: (h - 1 - y, x),
}


def rotated(image, orientation):
    """Return an image as a camera with this orientation stores it, and its EXIF data."""
    w, h = image.size
    stored = Image.new("RGB", (w, h) if orientation < 5 else (h, w))
    for x in range(w):
        for y in range(h):
            stored.putpixel(STORED[orientation](x, y, w, h), image.getpixel((x, y)))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return stored, exif


@pytest.mark.parametrize("orientation", STORED)
def test_exif_orientation_is_applied(tmp_path, orientation):
    """Photos of phones need it."""
    image = picture(9, 6)
    stored, exif = rotated(image, orientation)
    for name in ("a.png", "a.tif", "a.webp"):
        stored.save(tmp_path / name, exif=exif, lossless=True)
        assert np.array_equal(np.array(read_rgb(tmp_path / name)), np.array(image)), name
    y, x = np.mgrid[:24, :32]
    smooth = Image.fromarray(np.stack([8 * x, 10 * y, 5 * (x + y) // 2], axis=2).astype(np.uint8))
    stored, exif = rotated(smooth, orientation)
    stored.save(tmp_path / "a.jpg", exif=exif, quality=100, subsampling=0)
    assert np.abs(np.array(read_rgb(tmp_path / "a.jpg")).astype(int) - np.array(smooth)).max() <= 4


def test_damaged_exif_data_change_nothing(tmp_path):
    picture(16, 12).save(tmp_path / "a.jpg", exif=b"Exif\0\0no TIFF header")
    assert np.array_equal(np.array(read_rgb(tmp_path / "a.jpg")), np.array(Image.open(tmp_path / "a.jpg")))


def test_float_pixels_are_refused(tmp_path):
    """PIL clips them to 0 ... 255, so pixels in [0, 1] would all be black."""
    path = tmp_path / "float.tif"
    Image.fromarray(np.linspace(0, 1, 48, dtype=np.float32).reshape(6, 8)).save(path)
    message = f"{path} has float pixels, whose range is unknown; save it with integers of 8 or 16 bits"
    with pytest.raises(ValueError, match=re.escape(message)):
        read_rgb(path)
    assert why_unreadable(path) == message


@pytest.fixture
def counted(monkeypatch):
    """Count what the fast decoder decodes."""
    simplejpeg = pytest.importorskip("simplejpeg")
    calls, decode_jpeg = [], simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda data: calls.append(1) or decode_jpeg(data))
    return calls


@pytest.mark.parametrize("options", [{"subsampling": n} for n in range(3)] + [{"progressive": True}, {"quality": 30}])
def test_the_fast_decoder_gives_the_pixels_of_pil(tmp_path, counted, options):
    for size in [(64, 48), (33, 17), (1, 1)]:
        picture(*size).save(tmp_path / "a.jpg", **options)
        expected = np.array(Image.open(tmp_path / "a.jpg").convert("RGB")).astype(int)
        assert np.abs(np.array(read_rgb(tmp_path / "a.jpg")).astype(int) - expected).max() <= 1
    assert len(counted) == 3


def test_pil_decides_about_unusual_and_damaged_files(tmp_path, counted, monkeypatch):
    picture(16, 16).convert("L").save(tmp_path / "gray.jpg")
    picture(16, 16).convert("CMYK").save(tmp_path / "ink.jpg")
    picture(16, 16).save(tmp_path / "png.jpg", format="PNG")
    for name in ("gray.jpg", "ink.jpg", "png.jpg"):
        assert np.array_equal(np.array(read_rgb(tmp_path / name)), np.array(Image.open(tmp_path / name).convert("RGB")))
    assert not counted
    picture(50, 50).save(tmp_path / "short.jpg")
    cut_short(tmp_path / "short.jpg")
    with pytest.raises(OSError, match="truncated"):
        read_rgb(tmp_path / "short.jpg")
    counted.clear()
    picture(50, 50).save(tmp_path / "large.jpg")
    monkeypatch.setattr("maxup.lab.data.decode.PIXELS", 2000)
    with pytest.raises(ValueError, match="50 x 50 pixels"):
        read_rgb(tmp_path / "large.jpg")
    assert not counted


def test_without_the_fast_decoder_pil_decodes(tmp_path, monkeypatch):
    monkeypatch.setattr("maxup.lab.data.decode.find_simplejpeg", lambda: None)
    picture(16, 16).save(tmp_path / "a.jpg")
    assert np.array_equal(np.array(read_rgb(tmp_path / "a.jpg")), np.array(Image.open(tmp_path / "a.jpg")))


def test_the_fast_decoder_leaves_rotated_images_to_pil(tmp_path, counted):
    for orientation in (1, 6):
        stored, exif = rotated(picture(16, 16), orientation)
        stored.save(tmp_path / "a.jpg", exif=exif)
        expected = ImageOps.exif_transpose(Image.open(tmp_path / "a.jpg"))
        assert np.abs(np.array(read_rgb(tmp_path / "a.jpg")).astype(int) - np.array(expected)).max() <= 1
        assert len(counted) == 1  # only that of orientation 1
    picture(16, 8).save(tmp_path / "a.jpg", xmp=b'<x tiff:Orientation="6"/>')
    assert read_rgb(tmp_path / "a.jpg").size == (8, 16)
    assert len(counted) == 1
