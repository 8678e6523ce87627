"""Image folders of every kind for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

ORIENTATION = 0x0112


def picture(number: int, size: tuple[int, int] = (40, 30), mode: str = "RGB") -> Image.Image:
    """A picture of noise on a slope, so that crops and rotations differ; `size` is (width,
    height)."""
    width, height = size
    draw = np.random.default_rng(number)
    slope = (
        np.linspace(0, 200, width)[None, :, None] * np.array([1, 0.5, 0])
        + np.linspace(0, 55, height)[:, None, None]
    )
    image = Image.fromarray(np.uint8(slope + draw.integers(0, 50, (height, width, 3)) * 0.9))
    if mode == "16-bit":
        return Image.fromarray(np.asarray(image.convert("L"), np.uint16) * 257)
    return image if mode == "RGB" else image.convert(mode)


def write_picture(
    path: Path, number: int = 0, orientation: int = 1, format: str | None = None, **options
) -> Path:
    """Write one; format by name unless it is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    picture(number, **options).save(path, format, **({"exif": exif} if orientation != 1 else {}))
    return path


def odd_tree(root: Path) -> Path:
    """Two splits with every mode, orientation, kind of name and nesting that ImageFolder takes."""
    for split in ("train", "val"):
        place = root / split
        for number, mode in enumerate(("RGB", "L", "CMYK", "16-bit", "P", "RGBA", "LA", "1")):
            name = f"b {mode}.{'JPEG' if mode in ('RGB', 'L', 'CMYK') else 'png'}"
            write_picture(
                place / "beta" / name, number, size=(33 + number, 60 - 3 * number), mode=mode
            )
        for orientation in (3, 6):
            write_picture(place / f"alpha/turned {orientation}.jpg", orientation, orientation)
        whole = write_picture(place / "alpha/bad exif.jpg", 9).read_bytes()
        segment = b"\xff\xe1" + (60).to_bytes(2, "big") + b"Exif\0\0" + b"no TIFF header".ljust(52)
        (place / "alpha/bad exif.jpg").write_bytes(whole[:2] + segment + whole[2:])
        picture(10).save(place / "alpha/bad exif.webp", exif=b"junkjunk")
        write_picture(place / "alpha/a png.JPEG", 20, format="PNG")
        for number, name in enumerate(
            ("z.BMP", "y.Webp", "x.tIf", "w.tiff", "v.ppm", "u.JPG", "ä ö.png", "A.jpeg")
        ):
            write_picture(place / "Gamma" / name, 30 + number)
        write_picture(place / "Gamma/g.pgm", 40, mode="L")
        for number, name in enumerate(("n/2.png", "n-1/1.png", "n/deep/3.png", "m.png")):
            write_picture(place / "nested" / name, 50 + number, size=(20 + number, 90))
        (place / "Gamma/notes.txt").write_text("no image")
        (place / "readme.png").write_bytes(b"beside the classes, so of none")
    return root


def small_tree(root: Path, classes: int = 3, train: int = 10, val: int = 2) -> Path:
    """`train` and `val` images of 8 x 8 pixels in each of the classes; none is in both."""
    for split, count, first in (("train", train, 0), ("val", val, 10_000)):
        for number in range(classes * count):
            path = root / split / f"class {number % classes}" / f"{number:03d}.png"
            write_picture(path, first + number, size=(8, 8))
    return root
