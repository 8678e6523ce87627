"""The local Hub, driven by `huggingface_hub` as it is (tests/speech/test_upload_shards.py:
`datasets`)."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, errors

from millrace.common import atomic
from millrace.common.hub.server import serve
from millrace.common.hub.store import RefusedError, Repository, Store
from tests.common.hub.faults import TOKEN, commit_by_another, dying, faulty

pytestmark = pytest.mark.usefixtures("online")

REPO = "me/speech"
SHA256 = hashlib.sha256(b"x").hexdigest()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """(client, folder, faults) of a server with an empty data set; the client sends files by
    LFS."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
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


def run_client(endpoint: str, home: Path, program: str, *arguments: str, **environment: str):
    """A client of its own: it reads its settings when it is imported."""
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_TOKEN": TOKEN}
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )


ROUND_TRIP = """
    import hashlib, sys
    from pathlib import Path
    import huggingface_hub as hub
    from huggingface_hub import CommitOperationAdd as Add, CommitOperationDelete as Delete
    kind, contents = sys.argv[1], [bytes([number]) * 50_000 for number in range(2)]
    api = hub.HfApi()
    at = {"repo_id": "me/speech", "repo_type": kind}
    api.create_repo(**at, private=True)
    api.create_repo(**at, private=True, exist_ok=True)
    head = api.repo_info(**at)
    assert head.private
    names = ["data/no/0.tar", "data/no/1.tar"]
    adds = [Add(name, content) for name, content in zip(names, contents)]
    adds.append(Add("README.md", b"text"))
    api.preupload_lfs_files(**at, additions=adds, free_memory=False)
    assert [entry.path for entry in api.list_repo_tree(**at)] == [".gitattributes"]
    first = api.create_commit(**at, operations=adds, commit_message="a", parent_commit=head.sha)
    entries = {entry.path: entry for entry in api.list_repo_tree(**at, recursive=True)}
    assert [*entries] == [".gitattributes", "README.md", "data", "data/no", *names]
    for name, content in zip(names, contents):
        assert entries[name].size == len(content)
        assert entries[name].lfs.sha256 == hashlib.sha256(content).hexdigest()
        assert Path(hub.hf_hub_download("me/speech", name, repo_type=kind)).read_bytes() == content
    deletes = [Delete(names[0])]
    api.create_commit(**at, operations=deletes, commit_message="b", parent_commit=first.oid)
    known = api.get_paths_info(**at, paths=[*names, "data/no"])
    assert [entry.path for entry in known] == [names[1], "data/no"]
    there = [api.file_exists(**at, filename=names[0], revision=r) for r in (first.oid, "main")]
    assert there == [True, False]
"""


@pytest.mark.parametrize("kind", ["dataset", "model"])
def test_what_a_client_sends_it_lists_reads_and_deletes(tmp_path, kind):
    with faulty(tmp_path / "hub") as (endpoint, faults):
        done = run_client(endpoint, tmp_path / "home", ROUND_TRIP, kind, HF_HUB_DISABLE_XET="1")
        assert done.returncode == 0, done.stderr
    assert (faults.requests["put"], faults.bytes["put"]) == (2, 100_000)
    assert not list((tmp_path / "hub/uploads").iterdir())
    assert not [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and TOKEN.encode() in path.read_bytes()
    ]


def test_a_client_that_would_send_by_xet_is_refused(hub, monkeypatch):
    api, folder, _ = hub
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    with pytest.raises(Exception, match=r"400 Bad Request.*xet-write-token"):
        add(api, {"a.tar": b"x" * 1000})
    assert paths(api) == [".gitattributes"] and not list((folder / "uploads").iterdir())


def test_a_commit_on_an_old_parent_changes_nothing(hub):
    api, folder, faults = hub
    head = api.repo_info(REPO, repo_type="dataset").sha
    faults.plan("commit", commit_by_another(folder, REPO, "notes.txt"))
    with pytest.raises(errors.HfHubHTTPError) as refusal:
        add(api, {"a.md": b"a"}, parent_commit=head)
    assert refusal.value.response.status_code == 412
    assert paths(api) == [".gitattributes", "notes.txt"]
    add(api, {"a.md": b"a"}, parent_commit=api.repo_info(REPO, repo_type="dataset").sha)
    assert paths(api) == [".gitattributes", "a.md", "notes.txt"]


def test_a_commit_is_whole_or_nothing(hub):
    api, _, _ = hub
    operations = [CommitOperationAdd("a.md", b"a"), CommitOperationDelete("b.md")]
    with pytest.raises(errors.EntryNotFoundError):
        api.create_commit(REPO, operations, commit_message="x", repo_type="dataset")
    assert paths(api) == [".gitattributes"]


def test_ten_thousand_files_are_listed(hub):
    api, folder, _ = hub
    text = {"key": "file", "value": {"path": "data/x.md", "content": b"eA=="}}
    shards = [
        {"key": "lfsFile", "value": {"path": f"data/{i:05d}.tar", "oid": SHA256}}
        for i in range(9_998)
    ]
    for number, changes in enumerate(([text], shards)):
        Repository(Store(folder), "datasets", REPO).change(str(number), None, changes)
    assert len(paths(api)) == 10_001
    top = api.list_repo_tree(REPO, repo_type="dataset")
    assert [each.path for each in top] == [".gitattributes", "data"]


@pytest.mark.parametrize(
    "ask, error",
    [
        (
            lambda api: api.repo_info("me/other", repo_type="dataset"),
            errors.RepositoryNotFoundError,
        ),
        (lambda api: api.repo_info(REPO, repo_type="model"), errors.RepositoryNotFoundError),
        (
            lambda api: api.repo_info(REPO, repo_type="dataset", revision="v1"),
            errors.RevisionNotFoundError,
        ),
        (
            lambda api: list(api.list_repo_tree(REPO, "data", repo_type="dataset")),
            errors.EntryNotFoundError,
        ),
        (
            lambda api: api.create_repo("me/x", repo_type="space", space_sdk="static"),
            errors.BadRequestError,
        ),
        (lambda api: add(api, {"a.md": b""}, create_pr=True), errors.BadRequestError),
        (
            lambda api: add(
                api, {"a.md": b""}, revision=api.repo_info(REPO, repo_type="dataset").sha
            ),
            errors.BadRequestError,
        ),
    ],
)
def test_what_is_not_there_is_refused_as_by_the_hub(hub, ask, error):
    with pytest.raises(error):
        ask(hub[0])


@pytest.fixture
def repository(tmp_path):
    repository = Repository(Store(tmp_path), "datasets", REPO)
    repository.create(private=True)
    return repository


@pytest.mark.parametrize(
    "path", ["", "/a", "../a", "a/../b", "a//b", ".git/config", "a/.git/b", "a\0b", "./a"]
)
def test_a_path_that_leads_out_is_refused(repository, path):
    with pytest.raises(RefusedError, match="is not a path inside a repository"):
        repository.change("x", None, [{"key": "file", "value": {"path": path, "content": b""}}])


@pytest.mark.parametrize("name", ["me", "me/a/b", "../a", "me/..", "me/.a", "/a", "me/", "me/a b"])
def test_a_name_that_leads_out_is_refused(tmp_path, name):
    with pytest.raises(RefusedError, match="is not of the form owner/name"):
        Repository(Store(tmp_path), "datasets", name)


@pytest.mark.parametrize("oid", ["../../../etc/passwd", "", SHA256[:63], SHA256.upper()])
def test_a_content_is_named_by_a_sum_alone(repository, oid):
    with pytest.raises(RefusedError, match="not a SHA-256"):
        repository.change("x", None, [{"key": "lfsFile", "value": {"path": "a", "oid": oid}}])


def test_a_revision_leads_to_no_other_file(tmp_path, repository):
    (tmp_path / "secret.json").write_text("{}")
    with pytest.raises(RefusedError, match="has no revision"):
        repository.commit_at("../../../../secret")


def test_a_repository_that_is_there_is_not_created_again(tmp_path):
    repository = Repository(Store(tmp_path), "datasets", REPO)
    assert repository.create(private=True)
    change = {"key": "file", "value": {"path": "a.md", "content": "eA=="}}
    killed = atomic.partial_of(repository.folder / "commits/x.json")
    killed = killed.with_name(killed.name.replace(str(os.getpid()), str(1 << 30)))
    killed.touch()
    head = repository.change("x", None, [change])
    assert not killed.exists() and not repository.create(private=True)
    assert repository.commit_at("main")["oid"] == head


def test_a_commit_that_cannot_be_written_leaves_the_one_before(repository, monkeypatch):
    head, write = repository.commit_at("main"), atomic.write_bytes

    def full(path: Path, content: bytes) -> None:
        if path.parent.name == "commits":
            raise OSError("no space")
        write(path, content)

    monkeypatch.setattr(atomic, "write_bytes", full)
    with pytest.raises(OSError):
        repository.change("x", None, [])
    assert repository.commit_at("main") == head


def test_uploads_that_broke_off_days_ago_are_swept_and_those_of_today_stay(tmp_path):
    now = time.time()
    for name, hours in (("old", 25), ("new", 23)):
        (tmp_path / "uploads" / name).mkdir(parents=True)
        os.utime(tmp_path / "uploads" / name, (now, now - 3600 * hours))
    Store(tmp_path)
    assert os.listdir(tmp_path / "uploads") == ["new"]


def test_an_upload_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    calls, replace = [], os.replace
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    monkeypatch.setattr(os, "replace", lambda *of: calls.append("rename") or replace(*of))
    (tmp_path / "partial").write_bytes(b"x")
    Store(tmp_path).add(tmp_path / "partial", SHA256, 1)
    assert calls == ["fsync", "rename"]


def test_a_server_listens_on_loopback_alone(tmp_path):
    """As 127.0.0.2, the addresses that other machines see are none of its own."""
    with serve(tmp_path, TOKEN) as endpoint:
        port = int(endpoint.rpartition(":")[2])
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", port), timeout=5)


def ask(
    endpoint: str, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=10)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


BEARER = {"Authorization": f"Bearer {TOKEN}"}


def upload_path(endpoint: str, size: int) -> str:
    """Where the server takes in the content "x", which is said to have this size."""
    wish = json.dumps({"objects": [{"oid": SHA256, "size": size}]}).encode()
    _, answer = ask(
        endpoint, "POST", f"/datasets/{REPO}.git/info/lfs/objects/batch", wish, **BEARER
    )
    return json.loads(answer)["objects"][0]["actions"]["upload"]["href"].removeprefix(endpoint)


def test_bytes_that_are_not_what_they_are_called_are_refused(hub):
    api, folder, _ = hub
    right, too_small = upload_path(api.endpoint, 1), upload_path(api.endpoint, 2)
    assert ask(api.endpoint, "PUT", right, b"y")[0] == 400
    assert ask(api.endpoint, "PUT", too_small, b"x")[0] == 400
    # A client that dies in the middle.
    connection = http.client.HTTPConnection(api.endpoint.removeprefix("http://"))
    connection.request("PUT", right, b"", {"Content-Length": "1"})
    connection.close()
    with pytest.raises(RefusedError, match="1 contents were not uploaded"):
        Store(folder).require({SHA256})
    assert ask(api.endpoint, "PUT", right, b"x")[0] == 200
    Store(folder).require({SHA256})


def test_an_upload_ends_at_the_size_it_was_asked_for(hub):
    """Else a client could fill the disk with what is thrown away at the end."""
    api, folder, _ = hub
    connection = http.client.HTTPConnection(api.endpoint.removeprefix("http://"), timeout=20)
    connection.putrequest("PUT", upload_path(api.endpoint, 1))
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders(b"x" * (1 << 20))
    assert connection.getresponse().status == 400
    connection.close()
    assert not list((folder / "uploads").iterdir())


@pytest.mark.parametrize(
    "headers, status",
    [
        (BEARER, 200),
        ({}, 401),
        ({"Authorization": "Bearer another"}, 401),
        ({"Authorization": TOKEN}, 401),
        ({**BEARER, "Host": "example.org"}, 403),
        ({**BEARER, "Origin": "https://example.org"}, 403),
        ({**BEARER, "Origin": "null"}, 403),
        ({**BEARER, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**BEARER, "Sec-Fetch-Site": "same-site"}, 403),
        ({**BEARER, "Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_only_a_program_with_the_token_is_served(hub, headers, status):
    """Neither pages of the web that a browser shows here, nor other users of this machine."""
    api, folder, _ = hub
    assert ask(api.endpoint, "GET", f"/api/datasets/{REPO}", **headers)[0] == status
    commit = b'{"key": "header", "value": {"summary": "x"}}\n'
    commit += b'{"key": "file", "value": {"path": "a.md", "content": "eA=="}}'
    before = len(list(folder.rglob("commits/*")))
    assert (
        ask(api.endpoint, "POST", f"/api/datasets/{REPO}/commit/main", commit, **headers)[0]
        == status
    )
    assert len(list(folder.rglob("commits/*"))) == before + (status == 200)


def test_an_upload_needs_the_address_that_the_server_gave(hub):
    endpoint = hub[0].endpoint
    path = upload_path(endpoint, 1)
    for wrong in (path.partition("?")[0], path.replace("/1?", "/2?"), path[:-1]):
        assert ask(endpoint, "PUT", wrong, b"x", **BEARER)[0] == 401


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"key": 1}', b"\xff", b'{"value": {}}\n1'])
@pytest.mark.parametrize("route", ["/api/repos/create", f"/api/datasets/{REPO}/commit/main"])
def test_a_broken_request_is_answered_with_400(hub, route, body):
    status, answer = ask(hub[0].endpoint, "POST", route, body, **BEARER)
    assert status == 400 and "error" in json.loads(answer)


def test_a_range_of_a_file_is_read(hub):
    api, _, _ = hub
    add(api, {"a.tar": b"0123456789"})
    path = f"/datasets/{REPO}/resolve/main/a.tar"
    assert ask(api.endpoint, "GET", path, Range="bytes=3-5", **BEARER) == (206, b"345")


def test_the_server_of_the_command_line_prints_a_token_of_its_own(tmp_path):
    command = [sys.executable, "-m", "millrace.common.hub.server", str(tmp_path / "hub")]
    tokens = set()
    for _ in range(2):
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        endpoint, token = re.fullmatch(
            r"HF_ENDPOINT=(\S+) HF_TOKEN=(\S+) HF_HUB_DISABLE_XET=1\n", server.stdout.readline()
        ).groups()
        HfApi(endpoint, token=token).create_repo(REPO, repo_type="dataset", exist_ok=True)
        server.terminate()
        server.communicate()
        tokens.add(token)
    assert len(tokens) == 2 and all(len(token) > 30 for token in tokens)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [content for content in written for token in tokens if token.encode() in content]


@pytest.mark.long
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
        api = HfApi(endpoint, token=TOKEN)
        assert paths(api) == [".gitattributes", "0.tar", "1.tar", "2.tar"]
        [entry] = api.get_paths_info(REPO, ["1.tar"], repo_type="dataset")
        assert Store(tmp_path / "hub").content(entry.lfs.sha256).read_bytes() == b"\1" * 3_000_000


def test_two_servers_over_one_folder_make_no_commit_twice(tmp_path):
    """A user may have a server of his own running while the workflow uploads."""
    with serve(tmp_path, TOKEN) as one, serve(tmp_path, TOKEN) as two:
        apis = [HfApi(one, token=TOKEN), HfApi(two, token=TOKEN)]
        apis[0].create_repo(REPO, repo_type="dataset")
        threads = [
            threading.Thread(target=add, args=(apis[i % 2], {f"{i}.md": b"x"})) for i in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (
            paths(apis[0]) == paths(apis[1]) == [".gitattributes", *(f"{i}.md" for i in range(8))]
        )
