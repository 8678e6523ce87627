"""The two CSVs of a country."""

import pandas as pd

from tests import corpora
from tests.speech.chain import FRACTIONS, Chain


def test_columns_are_those_of_the_format(tmp_path):
    chain = Chain(tmp_path)
    corpora.make_corpus(chain.root, {"germany": 6}, seconds=10)
    chain.run("germany")
    tables = [chain.manifest_dir / f"germany_{name}.csv" for name in ("manifest", "splits")]
    manifest, splits = (pd.read_csv(path, keep_default_na=False) for path in tables)
    assert ",".join(manifest.columns) == (
        "key,country,language,video_id,transcript_id,source_audio_path,start_seconds,end_seconds,duration_seconds,"
        "asr_transcript,human_transcript,cer,wer,original_transcript_start_idx,original_transcript_end_idx,status,"
        "error_message,batch_id,split,subset_id"
    )
    assert set(manifest.status) == {"pending_local_tar"} and manifest.key.is_unique
    assert set(manifest[manifest.split == "train"].subset_id) == {"1"}
    assert set(manifest[manifest.split != "train"].subset_id) == {""}
    assert (
        ",".join(splits.columns)
        == "source_audio_path,video_id,duration_hours,size_mb,split,subset_id"
    )
    assert len(splits) == 6 and splits.video_id.is_unique
    assert set(splits.split) == set(FRACTIONS)
