"""The two CSVs of a country."""

import pandas as pd
import pytest

from tests import corpora
from tests.speech.chain import Chain


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    chain = Chain(tmp_path_factory.mktemp("merge"))
    corpora.make_corpus(chain.root, {"germany": 6}, seconds=10)
    for partition in chain.sync().partitions["germany"]:
        assert chain.generate(partition) == 0
    assert chain.merge_manifest("germany") == 0
    return chain


def test_columns_are_those_of_the_format(merged):
    manifest = pd.read_csv(merged.manifest_dir / "germany_manifest.csv", keep_default_na=False)
    assert ",".join(manifest.columns) == (
        "key,country,language,video_id,transcript_id,source_audio_path,start_seconds,end_seconds,duration_seconds,"
        "asr_transcript,human_transcript,cer,wer,original_transcript_start_idx,original_transcript_end_idx,status,"
        "error_message,batch_id,split,subset_id"
    )
    assert set(manifest.status) == {"pending_local_tar"} and manifest.key.is_unique
    assert set(manifest[manifest.split == "train"].subset_id) == {"1"}
    assert set(manifest[manifest.split != "train"].subset_id) == {""}


def test_splits_name_every_recording_once(merged):
    splits = pd.read_csv(merged.manifest_dir / "germany_splits.csv", keep_default_na=False)
    assert ",".join(splits.columns) == "source_audio_path,video_id,duration_hours,size_mb,split,subset_id"
    assert len(splits) == 6 and splits.video_id.is_unique
    assert set(splits.split) == {"train", "validation", "test"}


def test_a_country_without_partitions_has_empty_tables(merged):
    (merged.root / "latvia").mkdir()
    merged.sync()
    assert merged.merge_manifest("latvia") == 0
    assert len(pd.read_csv(merged.manifest_dir / "latvia_manifest.csv")) == 0
