"""What is said of loaders with a planted bug, and of correct ones that look like them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from millrace.audit.checks.run import audit
from millrace.audit.runner.guard import Guard
from millrace.audit.runner.target import Options

PLACE = "tests.audit.contracts"


@pytest.fixture(scope="module")
def judged():
    """judged(loader, entry, ...) -> its worst finding."""
    with Guard() as guard:

        def judge(name: str, entry: str, model: str = "", **args):
            model = f"{PLACE}:{model}" if model else ""
            options = Options(f"{PLACE}:make", {"name": name, **args}, model=model, ranks=2, epochs=1)
            results, findings = audit(options, [entry], guard)
            order = ("fail", "not decidable", "pass", "not applicable")
            return min(findings, key=lambda finding: order.index(finding.verdict)), results

        yield judge


@pytest.mark.parametrize(
    ("name", "entry", "verdict", "said"),
    [
        ("ragged", "DP4", "fail", "field row: torch.Tensor torch.float32 [5] against"),
        ("sorted and shuffled", "DP4", "fail", "field row"),
        ("sorted", "DP4", "pass", ""),
        ("padded", "DP4", "pass", "padded without lengths or mask"),
        ("padded with mask", "DP4", "pass", "collate"),
        ("pins nothing", "DP5", "fail", "not pinned: rows"),
        ("pins to None", "DP5", "fail", "returns None"),
        ("pins", "DP5", "pass", "1 tensors"),
        ("pins dicts", "DP5", "pass", "2 tensors"),
        ("good", "DP5", "not applicable", "pin_memory=False"),
        ("lambda", "DP6", "fail", "dataset.transform.steps.1"),
        ("lambda that is forked", "DP6", "pass", "collate_fn"),
        ("forgetful", "DP6", "fail", "dataset.transform: function -> NoneType"),
        ("partial", "DP6", "pass", "fork, spawn and forkserver"),
        ("wraps", "DP7", "fail", "[24] gives sample 0 again"),
        ("too long", "DP7", "fail", "[25] raises IndexError"),
        ("too short", "DP7", "fail", "rows has 24 items"),
        ("stream that says less", "DP7", "fail", "gives 24 samples"),
        ("good", "DP7", "pass", ""),
        ("made up", "DP7", "pass", ""),
        ("stream", "DP7", "pass", ""),
        ("one is left", "DP8", "not decidable", "rank 1: step 2"),
        ("good", "DP8", "pass", ""),
        ("too few", "edges", "fail", "rank 0 makes no step"),
        ("cache", "DP9", "fail", "bytes per new sample"),
        ("cache that fits", "DP9", "pass", "for 400 samples"),
        ("bounded cache", "DP9", "pass", ""),
        ("large cache", "DP9", "pass", "for 400 samples"),
        ("cache that is spoken of", "DP9", "fail", "for 100000000 samples"),
        ("cache beside a bounded one", "DP9", "fail", "for 100000000 samples"),
        ("good", "DP15", "pass", "2 in the loop"),
    ],
)
def test_bugs_are_named_and_their_twins_pass(judged, name, entry, verdict, said):
    finding, results = judged(name, entry)
    assert (finding.verdict, said in finding.cause) == (verdict, True), (finding, results)


@pytest.mark.parametrize(
    ("model", "verdict"), [("batch_norm", "fail"), ("group_norm", "pass"), ("frozen_norm", "pass")]
)
def test_the_model_decides_on_a_batch_of_one_and_learns_a_batch(judged, model, verdict):
    finding, results = judged("one is left", "DP8", model)
    assert finding.verdict == verdict
    assert results["model"].data[0]["overfit"]["steps"] == 100


def test_files_that_are_gone_are_named(judged, tmp_path):
    files = [tmp_path / f"{number}.txt" for number in range(4)]
    for file in files[:3]:
        file.write_text("a")
    names = list(map(str, files))
    assert judged("files", "stale", files=names[:3])[0].verdict == "pass"
    finding, _ = judged("files", "stale", files=names)
    assert (finding.verdict, finding.evidence["names"]) == ("fail", [names[3]])


@pytest.mark.parametrize(
    ("limit", "numbers", "tensors", "key", "needed", "ends"),
    [
        (
            "mount -t tmpfs -o size=64m tmpfs /dev/shm",
            500_000,
            1,
            "needed",
            6 * 16_003_072,
            "No space|Bus error",
        ),
        ("ulimit -n 256", 2, 100, "tensors", 100, "ancdata|Too many open files"),
    ],
)
def test_what_a_loader_will_lack_is_foretold(tmp_path, limit, numbers, tensors, key, needed, ends):
    """In a place where the loader does end for lack of it."""
    script = tmp_path / "wide.py"
    script.write_text(
        "import torch\nfrom torch.utils.data import DataLoader, Dataset\n"
        "class Wide(Dataset):\n    def __len__(self): return 80\n"
        f"    def __getitem__(self, index): return [torch.zeros({numbers})] * {tensors}\n"
        "def make(): return DataLoader(Wide(), batch_size=8, num_workers=2, timeout=4)\n"
        "if __name__ == '__main__':\n    import time\n    for _ in make(): time.sleep(2)\n"
    )
    audited = "import json\nfrom millrace.audit.checks.run import audit\n"
    audited += "from millrace.audit.runner.target import Options\n"
    audited += f"_, found = audit(Options('{script}:make', ranks=1), ['DP15'])\n"
    audited += "print(json.dumps([found[-1].verdict, dict(found[-1].evidence)]))"
    mount = ["unshare", "-m", "sh", "-c", f'{limit} && exec "$@"', "sh"]
    if subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run(
        [*mount, sys.executable, "-c", audited], env=path, check=True, capture_output=True
    )
    verdict, evidence = json.loads(answer.stdout)
    assert (verdict, evidence[key]) == ("fail", needed)
    run = subprocess.run([*mount, sys.executable, str(script)], capture_output=True, text=True)
    assert run.returncode
    assert re.search(ends, run.stderr)
