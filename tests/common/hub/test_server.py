"""The local Hub, driven by `huggingface_hub` and `datasets` as they are."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import subprocess
import sys
import tarfile
import textwrap
import threading
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    BadRequestError,
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from millrace.common.hub.server import serve
from millrace.common.hub.store import RefusedError, Repository, Store
from tests.common.hub.faults import commit_by_another, dying, faulty

REPO = "me/speech"
TOKEN = "hf_thisIsNoToken"
SHA256 = hashlib.sha256(b"x").hexdigest()


@pytest.fixture
def hub(tmp_path):
    """(client, folder, faults) of a server with an empty data set."""
    with faulty(tmp_path / "hub") as (endpoint, faults):
        api = HfApi(endpoint, token=TOKEN)
        api.create_repo(REPO, repo_type="dataset", private=True)
        yield api, tmp_path / "hub", faults


def add(api: HfApi, files: dict[str, bytes], **options) -> str:
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    options = {"repo_type": "dataset", "commit_message": "add"} | options
    return api.create_commit(REPO, operations, **options).oid


def paths(api: HfApi) -> list[str]:
    return [entry.path for entry in api.list_repo_tree(REPO, recursive=True, repo_type="dataset")]


def run_client(endpoint: str, home: Path, program: str, **environment: str) -> subprocess.CompletedProcess:
    """A client of its own: it reads its settings when it is imported."""
    environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_TOKEN": TOKEN, **environment}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def make_shard(path: Path, first: int, count: int) -> None:
    with tarfile.open(path, "w") as tar:
        for number in range(first, first + count):
            record = {"number": number, "wer": number + 0.25, "text": None if number < 6 else "x"}
            for kind, data in (("json", json.dumps(record).encode()), ("wav", b"RIFF" * 1000)):
                member = tarfile.TarInfo(f"s{number}.{kind}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


CARD = """---
configs:
- config_name: "no"
  data_files: [{split: train, path: "data/no/train/*.tar"}]
dataset_info:
- config_name: "no"
  features:
  - name: json
    struct: [{name: number, dtype: int64}, {name: wer, dtype: float64}, {name: text, dtype: string}]
  - {name: wav, dtype: binary}
---
"""
ROUND_TRIP = """
    from pathlib import Path
    import huggingface_hub as hub
    from huggingface_hub import CommitOperationAdd as Add, CommitOperationDelete as Delete
    kind, here = {kind!r}, Path({folder!r})
    api = hub.HfApi()
    api.create_repo("me/speech", repo_type=kind, private=True, exist_ok=True)
    head = api.repo_info("me/speech", repo_type=kind)
    assert head.private
    shards = sorted(here.glob("*.tar"))
    names = [f"data/no/train/{{path.name}}" for path in shards]
    adds = [Add(name, path) for name, path in zip(names, shards)] + [Add("README.md", here / "card.md")]
    api.preupload_lfs_files("me/speech", adds, repo_type=kind)
    assert [entry.path for entry in api.list_repo_tree("me/speech", repo_type=kind)] == [".gitattributes"]
    first = api.create_commit("me/speech", adds, commit_message="a", repo_type=kind, parent_commit=head.sha)
    tree = api.list_repo_tree("me/speech", recursive=True, repo_type=kind)
    entries = {{entry.path: entry for entry in tree}}
    assert [entries[name].size for name in names] == [path.stat().st_size for path in shards]
    assert [entries[name].lfs.sha256 for name in names] == {sums!r}
    for name, path in zip(names, shards):
        local = hub.hf_hub_download("me/speech", name, repo_type=kind)
        assert Path(local).read_bytes() == path.read_bytes()
    second = api.create_commit(
        "me/speech", [Delete(names[0])], commit_message="b", repo_type=kind, parent_commit=first.oid
    )
    known = api.get_paths_info("me/speech", [*names, "data/no"], repo_type=kind)
    assert [entry.path for entry in known] == [*names[1:], "data/no"]
    assert api.file_exists("me/speech", names[0], repo_type=kind, revision=first.oid)
"""


@pytest.mark.parametrize("kind", ["dataset", "model"])
@pytest.mark.parametrize("xet", [True, False])
def test_what_a_client_sends_it_lists_reads_and_deletes(tmp_path, kind, xet):
    for number in range(2):
        make_shard(tmp_path / f"no-train-{number:05d}.tar", 10 * number, 10)
    (tmp_path / "card.md").write_text(CARD)
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(tmp_path.glob("*.tar"))]
    program = ROUND_TRIP.format(kind=kind, folder=str(tmp_path), sums=sums)
    with faulty(tmp_path / "hub", part_bytes=30_000) as (endpoint, faults):
        done = run_client(endpoint, tmp_path / "home", program, HF_HUB_DISABLE_XET="" if xet else "1")
        assert done.returncode == 0, done.stderr
        # Parts of 30,000 bytes; with Xet the bytes go past the server.
        size = sum(path.stat().st_size for path in tmp_path.glob("*.tar"))
        assert faults.bytes["put"] == (0 if xet else size)
        assert faults.requests["join"] == (0 if xet else 2)
    assert not [path for path in (tmp_path / "hub/uploads").iterdir() if path.is_file()]
    contents = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in contents if TOKEN.encode() in path.read_bytes()]


def test_datasets_reads_it_streaming_and_not(tmp_path):
    for number in range(2):
        make_shard(tmp_path / f"{number}.tar", 10 * number, 10)
    with serve(tmp_path / "hub") as endpoint:
        api = HfApi(endpoint, token=TOKEN)
        api.create_repo(REPO, repo_type="dataset")
        shards = {f"data/no/train/{name}": (tmp_path / name).read_bytes() for name in ("0.tar", "1.tar")}
        add(api, shards | {"README.md": CARD.encode()})
        program = """
            import datasets
            for streaming in (True, False):
                rows = list(datasets.load_dataset("me/speech", "no", split="train", streaming=streaming))
                assert [row["json"]["number"] for row in rows] == list(range(20)), rows
                assert [row["json"]["wer"] for row in rows] == [number + 0.25 for number in range(20)]
                assert rows[0]["json"]["text"] is None and rows[9]["json"]["text"] == "x"
                assert len(rows[0]["wav"]) == 4000
        """
        done = run_client(endpoint, tmp_path / "home", program)
        assert done.returncode == 0, done.stderr


def test_a_commit_on_an_old_parent_changes_nothing(hub):
    api, folder, faults = hub
    head = api.repo_info(REPO, repo_type="dataset").sha
    faults.plan("commit", commit_by_another(folder, REPO, "notes.txt"))
    with pytest.raises(HfHubHTTPError) as refusal:
        add(api, {"a.md": b"a"}, parent_commit=head)
    assert refusal.value.response.status_code == 412
    assert paths(api) == [".gitattributes", "notes.txt"]
    add(api, {"a.md": b"a"}, parent_commit=api.repo_info(REPO, repo_type="dataset").sha)
    assert paths(api) == [".gitattributes", "a.md", "notes.txt"]


def test_a_commit_is_whole_or_nothing(hub):
    api, _, _ = hub
    operations = [CommitOperationAdd("a.md", b"a"), CommitOperationDelete("b.md")]
    with pytest.raises(EntryNotFoundError):
        api.create_commit(REPO, operations, commit_message="x", repo_type="dataset")
    assert paths(api) == [".gitattributes"]


def test_a_pull_request_is_seen_when_it_is_merged(hub):
    api, _, _ = hub
    first = api.create_commit(
        REPO, [CommitOperationAdd("a.md", b"a")], commit_message="a", repo_type="dataset", create_pr=True
    )
    add(api, {"b.tar": b"b"}, revision=first.pr_revision, parent_commit=first.oid)
    assert paths(api) == [".gitattributes"]
    api.merge_pull_request(REPO, first.pr_num, repo_type="dataset")
    assert paths(api) == [".gitattributes", "a.md", "b.tar"]


def test_a_pull_request_is_not_merged_over_another_commit(hub):
    api, folder, _ = hub
    operations = [CommitOperationAdd("a.md", b"a")]
    first = api.create_commit(REPO, operations, commit_message="a", repo_type="dataset", create_pr=True)
    commit_by_another(folder, REPO, "notes.txt")()
    with pytest.raises(HfHubHTTPError, match="does not start at the head of main"):
        api.merge_pull_request(REPO, first.pr_num, repo_type="dataset")
    assert paths(api) == [".gitattributes", "notes.txt"]


def test_ten_thousand_files_take_eleven_pages(hub):
    api, folder, faults = hub
    text = {"key": "file", "value": {"path": "data/x.md", "content": b"x"}}
    shards = [{"key": "lfsFile", "value": {"path": f"data/{i:05d}.tar", "oid": SHA256}} for i in range(9_998)]
    for number, changes in enumerate(([text], shards)):
        Repository(Store(folder), "datasets", REPO).change(str(number), None, changes)
    faults.clear()
    assert len(paths(api)) == 10_001
    assert faults.requests["tree"] == 11
    top = list(api.list_repo_tree(REPO, repo_type="dataset", expand=True))
    assert [(entry.path, entry.last_commit.title) for entry in top] == [
        (".gitattributes", "1"),
        ("data", "1"),
    ]


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda api: api.repo_info("me/other", repo_type="dataset"), RepositoryNotFoundError),
        (lambda api: api.repo_info(REPO, repo_type="model"), RepositoryNotFoundError),
        (lambda api: api.repo_info(REPO, repo_type="dataset", revision="v1"), RevisionNotFoundError),
        (lambda api: list(api.list_repo_tree(REPO, "data", repo_type="dataset")), EntryNotFoundError),
        (lambda api: api.hf_hub_download(REPO, "a.tar", repo_type="dataset"), EntryNotFoundError),
        (lambda api: api.create_repo("me/x", repo_type="space", space_sdk="static"), BadRequestError),
        (lambda api: add(api, {"a.md": b""}, revision="v1"), RevisionNotFoundError),
    ],
)
def test_what_is_not_there_is_refused_as_by_the_hub(hub, ask, error):
    with pytest.raises(error):
        ask(hub[0])


@pytest.mark.parametrize(
    "path", ["", "/a", "../a", "a/../b", "a//b", ".git/config", "a/.git/b", "a\0b", "./a"]
)
def test_a_path_that_leads_out_is_refused(tmp_path, path):
    repository = Repository(Store(tmp_path), "datasets", REPO)
    repository.create(private=True)
    with pytest.raises(RefusedError, match="is not a path inside a repository"):
        repository.change("x", None, [{"key": "file", "value": {"path": path, "content": b""}}])


@pytest.mark.parametrize("name", ["me", "me/a/b", "../a", "me/..", "me/.a", "/a", "me/", "me/a b"])
def test_a_name_that_leads_out_is_refused(tmp_path, name):
    with pytest.raises(RefusedError, match="is not of the form owner/name"):
        Repository(Store(tmp_path), "datasets", name)


def put(endpoint: str, path: str, body: bytes, length: int | None = None, host: str = "") -> int:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=10)
    headers = {"Content-Length": str(len(body) if length is None else length)} | (
        {"Host": host} if host else {}
    )
    connection.request("PUT", path, body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_bytes_that_are_not_what_they_are_called_are_refused(hub):
    api, folder, _ = hub
    assert put(api.endpoint, f"/lfs/{SHA256}/1/0", b"y") == 400
    assert put(api.endpoint, f"/lfs/{SHA256}/2/0", b"x") == 400
    assert put(api.endpoint, f"/lfs/{SHA256}/1/0", b"x", host="example.org") == 403
    assert put(api.endpoint, "/lfs/..%2F..%2Fx/1/0", b"x") == 400
    with pytest.raises(RefusedError, match="1 contents were not uploaded"):
        Store(folder).require({SHA256})
    assert put(api.endpoint, f"/lfs/{SHA256}/1/0", b"x") == 200
    Store(folder).require({SHA256})


def test_a_server_killed_in_the_middle_of_an_upload_is_whole_when_it_is_back(tmp_path):
    with dying(tmp_path / "hub", "put", 2, pause=1) as endpoint:
        program = """
            import huggingface_hub as hub
            api = hub.HfApi()
            api.create_repo("me/speech", repo_type="dataset")
            for number in range(3):
                operation = hub.CommitOperationAdd(f"{number}.tar", bytes([number]) * 3_000_000)
                api.create_commit("me/speech", [operation], commit_message="x", repo_type="dataset")
        """
        done = run_client(endpoint, tmp_path / "home", program, HF_HUB_DISABLE_XET="1")
        assert done.returncode == 0, done.stderr
        assert "Retrying" in done.stderr
        api = HfApi(endpoint, token=False)
        assert paths(api) == [".gitattributes", "0.tar", "1.tar", "2.tar"]
        [entry] = api.get_paths_info(REPO, ["1.tar"], repo_type="dataset")
        assert Store(tmp_path / "hub").content(entry.lfs.sha256).read_bytes() == b"\1" * 3_000_000


def test_two_servers_over_one_folder_make_no_commit_twice(tmp_path):
    """A user may have a server of his own running while the workflow uploads."""
    with serve(tmp_path) as one, serve(tmp_path) as two:
        apis = [HfApi(one, token=TOKEN), HfApi(two, token=TOKEN)]
        apis[0].create_repo(REPO, repo_type="dataset")
        threads = [threading.Thread(target=add, args=(apis[i % 2], {f"{i}.md": b"x"})) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert paths(apis[0]) == paths(apis[1]) == [".gitattributes", *(f"{i}.md" for i in range(8))]
