"""A country whose name begins another one's is swept alone; one that is gone leaves nothing of
ours."""

from millrace.speech.shards.sweep import sweep_country, sweep_gone


def test_sweeping_niger_leaves_nigeria(tmp_path):
    files = {}
    for country in ("niger", "nigeria"):
        name = f"{country}-test-00000"
        paths = [
            f"shards/{country}/test/{name}.tar",
            f"shards/{country}/test/.{name}.index.parquet",
        ]
        paths += [f"{root}/partitions/{name}/table.parquet" for root in ("shards", "manifest")]
        files[country] = [tmp_path / path for path in paths]
        for path in files[country]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    everything = {"niger-test-00000", "nigeria-test-00000"}
    assert sweep_country(tmp_path / "shards", tmp_path / "manifest", "niger", everything) == []
    assert len(sweep_country(tmp_path / "shards", tmp_path / "manifest", "niger", set())) == 4
    assert not any(path.exists() for path in files["niger"])
    assert all(path.exists() for path in files["nigeria"])


def test_a_country_that_is_gone_leaves_what_others_have_put_beside_it(tmp_path):
    tables = ["manifest.csv", "index.parquet", "rejects.csv", "ledger.json"]
    for split in ("train", "validation", "test"):
        tables.append(f"{split}_shards.txt")
    ours = [f"shards/niger_{table}" for table in tables] + [
        "manifest/niger_manifest.csv",
        "manifest/niger_splits.csv",
    ]
    ours += [
        "shards/niger/test/niger-test-00000.tar",
        "manifest/partitions/niger-test-00000/table.parquet",
    ]
    theirs = [
        "shards/niger_notes.csv",
        "shards/nigeria_index.parquet",
        "manifest/niger_old_splits.csv",
    ]
    theirs += ["shards/niger/test/mine.tar", "shards/niger_train_shards.txt.gz"]
    # The workflow's train has subsets: this one was made by hand.
    theirs.append("shards/niger/train/niger-train-00000.tar")
    for name in ours + theirs:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    deleted = sweep_gone(tmp_path / "shards", tmp_path / "manifest", "niger")
    assert len(deleted) == len(ours) and not any((tmp_path / name).exists() for name in ours)
    assert all((tmp_path / name).exists() for name in theirs)
    for name in theirs:
        (tmp_path / name).unlink()
    assert sweep_gone(tmp_path / "shards", tmp_path / "manifest", "niger") == []
    assert not (tmp_path / "shards/niger").exists()
