"""Record files against webdataset: `python -m tests.bench.bench_images RECORDS` (a folder with
train/).

MosaicML streaming is not measured: it imports torchvision, and wants numpy below 2.2, transformers
below 5.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from millrace.image.records.reader import RecordReader
from millrace.image.records.record_set import RecordSet
from millrace.image.training.readers import H5Reader, measure


class WebDatasetReader:
    """The same images as PNG in one tar for each record file, read as webdataset's documentation
    shows."""

    def __init__(self, records: RecordSet, folder: Path) -> None:
        import webdataset

        reader, self.images = RecordReader(records), len(records)
        for file in range(len(records.files)):
            with webdataset.TarWriter(str(folder / f"train-{file:05d}.tar")) as tar:
                block = reader.read(file, 0, records.files[file].records)
                for image, label, key in zip(block.images, block.labels, block.ids, strict=True):
                    buffer = io.BytesIO()
                    Image.fromarray(image).save(buffer, "PNG")
                    tar.write(
                        {"__key__": f"{key:09d}", "png": buffer.getvalue(), "cls": int(label)}
                    )
        self.paths = sorted(map(str, folder.glob("*.tar")))

    def rate(self) -> float:
        """Images a second of one pass in this process."""
        import webdataset

        began = time.perf_counter()
        dataset = (
            webdataset.WebDataset(self.paths, shardshuffle=False)
            .decode("rgb8")
            .to_tuple("png", "cls")
        )
        count = sum(np.asarray(image).size > 0 for image, _ in dataset)
        return count / (time.perf_counter() - began)


def main() -> None:
    records = RecordSet.open(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        peer = WebDatasetReader(records, Path(folder))
        size = sum(Path(path).stat().st_size for path in peer.paths) / len(records)
        rates = []
        for _ in range(5):  # interleaved, as other work on the machine disturbs
            whole, single = (
                measure("H5", H5Reader(records, way, 0), 0, 1) for way in (True, False)
            )
            rates.append((whole["images_per_second"], single["images_per_second"], peer.rate()))
    names = ("H5, on_group", "H5, on_demand", f"webdataset, PNG ({size:,.0f} bytes per image)")
    for name, rate in zip(names, np.median(rates, axis=0), strict=True):
        print(f"{name}: {rate:,.0f} images/s")


if __name__ == "__main__":
    main()
