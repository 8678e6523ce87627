"""Encoded images as pixels: which formats are read as ImageFolder does, what is damaged or odd, and
how they are resized and cropped as torchvision does."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from millrace.common.errors import Unusable, first_line
from millrace.image.records.options import MAX_PIXELS

# Of ImageFolder's extensions. Pillow knows many more, and starts Ghostscript for one of them (EPS).
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")
_ORIENTATION = 0x0112
_TURNED = range(2, 9)  # values of it
# Corrupt EXIF, large images: said of no file, and nothing that a user could mend.
warnings.filterwarnings("ignore", module=r"PIL\.")


def read_image(content: Any, suffix: str = "") -> tuple[Any, list[str]]:
    """The image in encoded bytes as RGB (PIL), and what is odd about it. Raises Unusable.

    Its format is told by the content, and is one of FORMATS; a file whose name says JPEG and that
    is none is odd. One of more than MAX_PIXELS is refused by its header. A rotation in EXIF is
    only counted, as ImageFolder ignores it.
    """
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise Unusable("too_large", f"{width} x {height} pixels, more than {MAX_PIXELS}")
        if image.format == "PNG":  # of which Pillow compares the check sums only if it is asked to
            Image.open(io.BytesIO(content), formats=FORMATS).verify()
        if image.format == "TIFF" and _is_misread(image.tag_v2):
            words = "a plain TIFF of 16 bits whose channels lie apart: write it interleaved"
            raise Unusable("no_image", words)
        odd = _oddities(image, suffix)
        whole = image.convert("RGB")
        try:
            if image.getexif().get(_ORIENTATION) in _TURNED:
                odd.append("exif_orientation")
        except Exception:  # as below; ImageFolder does not look at EXIF
            odd.append("damaged EXIF")
        return whole, odd
    except Unusable:
        raise
    except UnidentifiedImageError:
        words = f"no image of a known format ({', '.join(FORMATS)})"
        raise Unusable("no_image" if len(content) else "empty", words) from None
    except Image.DecompressionBombError as error:
        raise Unusable("too_large", str(error)) from None
    # PIL's decoders raise whatever a damaged file makes them run into.
    except Exception as error:
        raise Unusable("damaged", first_line(error)) from None


def _is_misread(tags: Any) -> bool:
    """Whether Pillow would show noise: it takes each half of the values for one of 8 bits."""
    # PlanarConfiguration, Compression, BitsPerSample.
    return tags.get(284) == 2 and tags.get(259, 1) == 1 and max(tags.get(258, (1,))) > 8


def _oddities(image: Any, suffix: str) -> list[str]:
    """What is odd about an image that is open, by its header."""
    odd = []
    if image.mode[0] in "IF":
        odd.append(f"mode {image.mode} (cut to 0 to 255)")
    elif image.mode != "RGB":
        odd.append(f"mode {image.mode}")
    if suffix.lower() in (".jpg", ".jpeg") and image.format != "JPEG":
        odd.append(f"{image.format} named {suffix}")
    if getattr(image, "is_animated", False):
        odd.append("first of several frames")
    return odd


def resized(image: Any, resize: int, crop: int) -> np.ndarray:
    """Resize(`resize`) and CenterCrop(`crop`), bilinear, as uint8 (crop, crop, 3). Raises
    Unusable."""
    width, height = image.size
    short = min(width, height)
    long = max(width, height)
    if short != resize:
        other = int(resize * long / short)
        if resize * other > Image.MAX_IMAGE_PIXELS:
            words = (
                f"{width} x {height} pixels would be {other} long with {resize} at the short side"
            )
            raise Unusable("too_large", words)
        width, height = (resize, other) if width <= height else (other, resize)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left = round((width - crop) / 2.0)
    top = round((height - crop) / 2.0)
    return np.asarray(image.crop((left, top, left + crop, top + crop)))
