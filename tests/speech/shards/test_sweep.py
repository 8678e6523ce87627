"""A country whose name begins another one's is swept alone."""

from millrace.speech.shards.sweep import sweep_country


def test_sweeping_niger_leaves_nigeria(tmp_path):
    files = {}
    for country in ("niger", "nigeria"):
        name = f"{country}-test-00000"
        paths = [f"shards/{country}/test/{name}.tar", f"shards/{country}/test/.{name}.index.parquet"]
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
