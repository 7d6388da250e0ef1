"""Image files of every supported kind are decoded as a viewer would show them."""

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from turnwise.data.readers.image_files import decode, describe, read_image, warn_about_bit_depth
from turnwise.errors import InputError


@pytest.fixture
def grey(rng):
    return rng.integers(0, 256, (6, 9), np.uint8)


@pytest.fixture
def colour(rng):
    return rng.integers(0, 256, (6, 9, 3), np.uint8)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".TIFF", ".PNG", ".bmp"])
def test_grey_and_colour_come_back_exactly(tmp_path, grey, colour, suffix):
    for pixels in (grey, colour):
        path = tmp_path / f"x{suffix}"
        Image.fromarray(pixels).save(path)
        expected = torch.from_numpy(pixels)
        expected = expected[None] if expected.ndim == 2 else expected.permute(2, 0, 1)
        assert torch.equal(decode(path), expected)
        assert describe(path) == (6, 9, pixels.ndim == 3, 8)


def test_jpeg_is_close(tmp_path):
    Image.new("RGB", (8, 8), (200, 100, 50)).save(tmp_path / "x.jpg", quality=95)
    error = decode(tmp_path / "x.jpg").int() - torch.tensor([200, 100, 50]).view(3, 1, 1)
    assert error.abs().max() <= 3


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bits_are_scaled_and_not_cut_off(tmp_path, suffix):
    deep = np.array([[0, 128, 257], [32896, 65278, 65535]], np.uint16)
    Image.fromarray(deep).save(tmp_path / f"x{suffix}")
    assert decode(tmp_path / f"x{suffix}").tolist() == [[[0, 0, 1], [128, 254, 255]]]
    assert describe(tmp_path / f"x{suffix}") == (2, 3, False, 16)


def deep_png(path, values, colour=False):
    """Write 16-bit grey with Pillow, and 16-bit colour by hand, which Pillow cannot write."""
    deep = np.array(values, np.uint16)
    if not colour:
        Image.fromarray(deep).save(path)
        return
    rows = b"".join(b"\0" + np.repeat(row, 3).astype(">u2").tobytes() for row in deep)
    header = struct.pack(">IIBBBBB", deep.shape[1], deep.shape[0], 16, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    framed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(framed))


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("most", [1023, 4095, 16383, 30000, 0])
def test_a_warning_is_printed_if_no_image_uses_all_16_bits(tmp_path, capsys, most, colour):
    paths = [tmp_path / name for name in ("black.png", "eight.png", "deep.png", "x.tif")]
    deep_png(paths[0], [[0, 0]])
    Image.fromarray(np.array([[0, 255]], np.uint8)).save(paths[1])
    deep_png(paths[2], [[0, most]], colour)
    Image.fromarray(np.array([[0, most // 2]], np.uint16)).save(paths[3])
    warn_about_bit_depth(paths)
    printed = capsys.readouterr().err
    warned = "none of 3 images of 16 bits is brighter than a quarter of 65,535" in printed
    assert warned == (0 < most < 20000)
    assert warned or not printed


def test_webp_without_loss_comes_back_exactly(tmp_path, colour):
    Image.fromarray(colour).save(tmp_path / "x.webp", lossless=True)
    assert torch.equal(decode(tmp_path / "x.webp"), torch.from_numpy(colour).permute(2, 0, 1))


def test_floating_point_is_refused(tmp_path):
    Image.fromarray(np.ones((3, 3), np.float32)).save(tmp_path / "x.tif")
    with pytest.raises(InputError, match=r"x\.tif has values outside .* 8 or 16 bits per pixel"):
        decode(tmp_path / "x.tif")


def test_palettes(tmp_path, colour):
    coloured = Image.fromarray(colour).quantize(16)
    coloured.save(tmp_path / "c.png")
    expected = torch.from_numpy(np.array(coloured.convert("RGB"))).permute(2, 0, 1)
    assert torch.equal(decode(tmp_path / "c.png"), expected)
    Image.new("L", (4, 4), 77).convert("P").save(tmp_path / "g.png")
    assert decode(tmp_path / "g.png").tolist() == [[[77] * 4] * 4]
    assert describe(tmp_path / "c.png").colour and not describe(tmp_path / "g.png").colour


def test_transparent_parts_are_black(tmp_path):
    pixels = np.full((2, 2, 4), 200, np.uint8)
    pixels[..., 3] = [[255, 0], [0, 255]]
    Image.fromarray(pixels).save(tmp_path / "c.png")
    assert decode(tmp_path / "c.png").tolist() == [[[200, 0], [0, 200]]] * 3
    Image.fromarray(pixels[..., 2:]).save(tmp_path / "g.png")
    assert decode(tmp_path / "g.png").tolist() == [[[200, 0], [0, 200]]]


def test_bilevel(tmp_path):
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "x.png")
    assert decode(tmp_path / "x.png").tolist() == [[[255, 0]]]


def test_the_exif_orientation_is_applied(tmp_path, grey):
    exif = Image.Exif()
    exif[0x0112] = 6  # shown rotated clockwise by 90°
    Image.fromarray(grey).save(tmp_path / "x.png", exif=exif)
    assert torch.equal(decode(tmp_path / "x.png")[0], torch.from_numpy(grey).rot90(-1))


def test_an_image_is_cropped_resampled_and_converted_to_colour(tmp_path):
    pixels = np.zeros((6, 10), np.uint8)
    pixels[:, 2:8] = 120
    Image.fromarray(pixels).save(tmp_path / "x.png")
    image = read_image(str(tmp_path / "x.png"), image_size=3, channels=3)
    assert image.shape == (3, 3, 3)
    assert image.unique().tolist() == [120]
    assert read_image(tmp_path / "x.png").shape == (1, 6, 10)


def test_a_missing_image(tmp_path):
    with pytest.raises(InputError, match=r"there is no image .*x\.png; give the path of a PNG"):
        read_image(tmp_path / "x.png")


@pytest.mark.parametrize("share", [0.0, 0.2, 0.7])
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif"])
def test_a_damaged_image_is_named(tmp_path, rng, share, suffix):
    path = tmp_path / f"x{suffix}"
    Image.fromarray(rng.integers(0, 256, (60, 60, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=rf"image .*x{suffix} cannot be read .*remove it or rep"):
        read_image(path)


def test_a_photograph_with_damaged_exif_tags_is_named(tmp_path):
    """The tag for the number of rows holds text; Pillow fails when it rotates the image."""
    rows = struct.pack("<HHI4s", 257, 2, 2, b"x")
    sideways = struct.pack("<HHII", 274, 3, 1, 6)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + rows + sideways + bytes(4)
    Image.new("L", (4, 4)).save(tmp_path / "x.jpg", exif=exif)
    with pytest.raises(InputError, match=r"image .*x\.jpg cannot be read \(.+\); remove it or rep"):
        read_image(tmp_path / "x.jpg")


def test_other_formats_are_not_opened(tmp_path):
    Image.new("L", (3, 3)).save(tmp_path / "x.ppm")
    (tmp_path / "x.ppm").rename(tmp_path / "x.png")
    with pytest.raises(InputError, match="cannot be read"):
        read_image(tmp_path / "x.png")


@pytest.mark.parametrize("limit", [60, 20], ids=["warning", "error"])
def test_a_decompression_bomb(tmp_path, monkeypatch, limit):
    Image.new("L", (10, 10)).save(tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(InputError, match=rf"x\.png has more than {limit} pixels and is not opened"):
        read_image(tmp_path / "x.png")
