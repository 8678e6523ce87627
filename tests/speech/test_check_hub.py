"""The difference is printed, and nothing is sent."""

from __future__ import annotations

from millrace.speech import check_hub
from tests.speech.hub.corpus import write_corpus
from tests.speech.test_upload_shards import flags, made, publish, write


def test_the_difference_is_printed_and_nothing_is_sent(tmp_path, capsys):
    place = made(tmp_path) | {"server_dir": tmp_path / "server", "diff": tmp_path / "diff.txt"}
    write_corpus(tmp_path, {"norway": ("train", "test"), "malta": ("train",)}, samples=1)
    assert write(tmp_path) == 0 and check_hub.main(flags(**place)) == 0
    assert "which does not exist yet:\nadd    5 files" in capsys.readouterr().out
    assert not list((tmp_path / "server").rglob("main"))

    assert publish(tmp_path) == 0
    write_corpus(tmp_path, {"norway": ("train", "validation")}, samples=2)
    assert write(tmp_path) == 0
    before = sorted((tmp_path / "server").rglob("*"))
    capsys.readouterr()
    assert check_hub.main(flags(**place)) == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert said == (tmp_path / "diff.txt").read_text()
    assert lines[0].startswith("me/speech on local, at commit ")
    assert [line.split()[:3] for line in lines if line[0] != " "][1:] == [
        ["add", "1", "file"], ["change", "3", "files"], ["delete", "2", "files"], ["keep", "nothing"],
    ]  # fmt: skip
    assert "  data/malta/train/malta-train-1-00000.tar (10,240 bytes)" in lines
    assert sorted((tmp_path / "server").rglob("*")) == before
