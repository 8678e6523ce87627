"""Publishing: the repository holds what it is to hold, whatever fails on the way; or people are
told."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from millrace.common.errors import MillraceError
from millrace.common.hub import publish as publishing
from millrace.common.hub.publish import File, make_plan, publish
from millrace.common.hub.store import Repository, Store
from tests.common.hub.faults import commit_by_another, faulty
from tests.common.hub.files import CARD, REPO, history, repository, tree, wanted, write_shards

pytestmark = pytest.mark.usefixtures("online")

ROOT = Path(__file__).parents[3]


@pytest.fixture
def served(tmp_path, monkeypatch):
    """The endpoint of a local Hub in tmp_path/hub, to which files are sent by LFS; its faults."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with faulty(tmp_path / "hub") as endpoint_and_faults:
        yield endpoint_and_faults


@pytest.fixture
def hub(served):
    """The repository, which does not exist yet."""
    return repository(served[0])


@pytest.fixture
def faults(served):
    return served[1]


@pytest.fixture
def shards(tmp_path):
    return partial(write_shards, tmp_path / "tars")


def publish_all(hub: Any, files: list[File], **choices: float) -> None:
    """Publish, after which the repository holds these files."""
    publish(hub, files, **choices)
    assert tree(hub) == wanted(files)


def publish_once(hub: Any, files: list[File], folder: Path) -> None:
    """Publish, as the first commit after the one that creates the repository."""
    publish_all(hub, files)
    assert len(history(folder / "hub")) == 2


def test_what_has_changed_is_sent_and_nothing_else(tmp_path, hub, shards, faults):
    files = [*shards(range(50)), File.of("README.md", CARD)]
    publish_once(hub, files, tmp_path)

    faults.clear()
    head = hub.head
    publish(hub, files)
    assert hub.head == head and set(faults.requests) == {"info", "tree"}
    assert sum(faults.bytes.values()) == 0 and len(history(tmp_path / "hub")) == 2

    # Two changed, one new, three gone: one commit, and the bytes of three.
    files = [*shards(range(2), 3000, seed=1), *files[5:50]]
    files += [
        *shards(range(50, 51), 4000),
        File.of("README.md", CARD + b"more"),
    ]
    for file in files[2:47]:
        file.source.unlink()  # what is there already is not read
    faults.clear()
    publish_all(hub, files)
    assert len(history(tmp_path / "hub")) == 3
    assert faults.requests["commit"] == 1
    assert faults.bytes["put"] == 2 * 3000 + 4000 and faults.requests["put"] == 3


@pytest.mark.parametrize(
    "route, fault",
    [("tree", "drop"), ("preupload", 500), ("batch", 500), ("put", 429), ("put", "drop")],
)
def test_where_files_are_listed_and_sent_the_client_tries_again(
    tmp_path, hub, shards, faults, route, fault
):
    files = shards(range(4))
    faults.plan(route, fault)
    publish_once(hub, files, tmp_path)


@pytest.mark.parametrize(
    "route, fault",
    [
        ("info", 500),
        ("create", 504),
        ("validate-yaml", 500),
        ("commit", 500),
        ("commit", 429),
        ("commit", 504),
        ("commit", "drop"),
    ],
)
def test_after_any_other_fault_the_same_command_sends_only_what_is_missing(
    tmp_path, hub, shards, faults, route, fault
):
    files = [*shards(range(4)), File.of("README.md", CARD)]
    faults.plan(route, fault)
    with pytest.raises(MillraceError, match="run the same command again"):
        publish(hub, files)
    publish_once(hub, files, tmp_path)
    assert faults.requests["put"] == 4


@pytest.mark.parametrize(
    "route, status, words",
    [
        ("info", 401, "accepts no token of yours .401 planned 401.*hf auth login"),
        ("commit", 401, "HF_TOKEN"),
        ("commit", 403, "may not do this.*write access"),
        ("create", 404, "no such repository"),
        ("put", 413, "takes no files.*max_shard_size_gb"),
        ("commit", 413, "max_shard_size_gb"),
        ("commit", 422, "refuses the request"),
    ],
)
def test_what_no_further_attempt_mends_stops_with_what_to_do(
    hub, shards, faults, route, status, words
):
    faults.plan(route, status, status)
    with pytest.raises(MillraceError, match=words):
        publish(hub, shards(range(1)))
    assert faults.requests[route] == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_below_the_local_hub_is_named(hub, shards, monkeypatch, number):
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Store, "add", full)
    words = rf"the Hub has no space .*{os.strerror(number)}"
    with pytest.raises(MillraceError, match=words):
        publish(hub, shards(range(1)))


def test_another_ones_commit_in_between_is_seen_and_its_files_stay_but_for_data(
    tmp_path, hub, shards, faults
):
    files = shards(range(4))
    publish(hub, files[:2])
    beside = ["NOTICE.txt", "database.json", "data.csv", "more/data/x.txt"]
    for number, path in enumerate([*beside, "data/stranger.txt"]):
        faults.plan("commit", commit_by_another(tmp_path / "hub", REPO, path))
        with pytest.raises(MillraceError, match=r"412 .*run the same command again"):
            publish(hub, files[number % 2 :])
        publish(hub, files[number % 2 :])
    names = {entry.path for entry in hub.tree()}
    assert names == {".gitattributes", *beside, *wanted(files)}
    # What comes between the two looks of a publication is the next one's.
    head = hub.head
    faults.plan("tree", commit_by_another(tmp_path / "hub", REPO, "data/late.txt"))
    assert publish(hub, files)["commit"] == head


LOST = {
    "changed": "README.md",
    "new": "data/malta/train/99999.tar",
    "gone": "data/malta/train/00000.tar",
}


@pytest.mark.parametrize("lost", LOST)
def test_a_commit_that_was_confirmed_and_lost_a_file_is_noticed(
    tmp_path, hub, shards, monkeypatch, lost
):
    change, losses = Repository.change, []

    def careless(place: Repository, title: str, parent: str | None, operations: list[dict]) -> str:
        """Commit all but what is to be lost, and say that all went well."""
        path = losses.pop() if losses else None
        return change(
            place, title, parent, [each for each in operations if each["value"]["path"] != path]
        )

    monkeypatch.setattr(Repository, "change", careless)
    card = File.of("README.md", CARD)
    publish(hub, [card, *many(tmp_path / "one.tar", 4)])
    files = [*many(tmp_path / "one.tar", 4, b"y")[1:], File.of("README.md", CARD + b"more")]
    files += shards(range(99999, 100000))
    losses.append(LOST[lost])
    with pytest.raises(MillraceError, match="the repository does not hold what was sent"):
        publish(hub, files)
    publish_all(hub, files)
    assert not losses
    assert not make_plan(files, hub.tree()).sends


@pytest.mark.long
def test_a_client_that_is_killed_goes_on_where_it_was(tmp_path):
    program = (
        "import sys\nfrom pathlib import Path\nfrom millrace.common.hub.publish import publish\n"
        "from tests.common.hub.files import repository, write_shards\n"
        "publish(repository(sys.argv[1]), write_shards(Path(sys.argv[2]), range(120)))"
    )
    with faulty(tmp_path / "hub") as (endpoint, faults):
        is_dead = threading.Event()
        faults.plan("put", *[None] * 70, is_dead.wait)
        command = [sys.executable, "-c", program, endpoint, str(tmp_path / "tars")]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}/scripts:{ROOT}",
            "HF_HUB_DISABLE_XET": "1",
        }
        client = subprocess.Popen(command, env=environment)
        while faults.requests["put"] < 71:
            assert client.poll() is None
            time.sleep(0.02)
        client.send_signal(signal.SIGKILL)
        client.wait()
        is_dead.set()
        hub = repository(endpoint)
        assert tree(hub) == {}
        faults.clear()
        subprocess.run(command, env=environment, check=True)
        assert tree(hub) == wanted(write_shards(tmp_path / "tars", range(120)))
        assert 40 <= faults.requests["put"] <= 60


def many(source: Path, count: int, byte: bytes = b"x") -> list[File]:
    """Files of the same bytes under many paths."""
    source.write_bytes(byte * 100)
    one = File.of("x", source)
    return [
        File(f"data/malta/train/{number:05d}.tar", 100, one.sha256, source)
        for number in range(count)
    ]


def test_ten_thousand_files_take_few_requests_and_no_look_at_the_disk(
    tmp_path, hub, shards, faults
):
    files = many(tmp_path / "one.tar", 10_000)
    publish(hub, files[:1])
    values = [{"path": file.path, "oid": file.sha256} for file in files]
    place = Repository(Store(tmp_path / "hub"), "datasets", REPO)
    place.change("all", None, [{"key": "lfsFile", "value": value} for value in values])
    (tmp_path / "one.tar").unlink()
    faults.clear()
    publish(hub, files)
    assert faults.requests.total() <= 12
    faults.clear()
    publish(hub, [*files[:-2], *shards(range(10_000, 10_002))])
    assert faults.requests["info"] + faults.requests["tree"] <= 25


@pytest.mark.parametrize("fault", [500, 504, "drop"])
def test_a_large_first_publication_is_whole_with_its_card_and_later_changes_are_one_commit(
    tmp_path, hub, faults, monkeypatch, fault
):
    monkeypatch.setattr(publishing, "_CHANGES", 20)
    card = File.of("README.md", CARD)
    files = [card, *many(tmp_path / "one.tar", 44)]
    faults.plan("commit", None, fault)
    with pytest.raises(MillraceError, match="run the same command again"):
        publish(hub, files)
    publish_all(hub, files)
    commits = history(tmp_path / "hub")
    assert 4 <= len(commits) <= 5
    assert ["README.md" in commit["files"] for commit in commits[:2]] == [True, False]

    files = [File.of("README.md", CARD + b"\n"), *many(tmp_path / "one.tar", 45, b"y")]
    publish_all(hub, files)
    assert len(history(tmp_path / "hub")) == len(commits) + 1


@pytest.mark.parametrize("private, refused", [(True, True), (False, False)])
def test_a_public_repository_is_refused_where_private_was_asked(hub, shards, private, refused):
    hub.api.create_repo(REPO, repo_type="dataset", private=False)
    files = shards(range(1))
    hub.private = private
    if refused:
        with pytest.raises(MillraceError, match="public, and private was asked"):
            publish(hub, files)
    else:
        publish(hub, files)
    hub.private = False
    assert tree(hub) == ({} if refused else wanted(files))


def test_many_deletes_are_refused_and_a_changed_file_is_not_published(hub, shards):
    files = shards(range(4))
    publish(hub, files)
    refusal = (
        r"3 of 4 files below data/.*max_delete_fraction 0.5.*run this step with --allow-delete"
    )
    # What is new makes the share no smaller.
    for new in ([], shards(range(20, 30))):
        with pytest.raises(MillraceError, match=refusal):
            publish(hub, [*files[:1], *new], max_delete_fraction=0.5)
    # What is changed was there, too.
    files = shards(range(2), 3000)
    publish_all(hub, files, max_delete_fraction=0.5)
    new = shards(range(9, 10))
    new[0].source.write_bytes(bytes(new[0].size))
    with pytest.raises(MillraceError, match="has changed since it was planned"):
        publish(hub, files + new)


def test_a_plan_names_ten_of_a_kind_and_counts_the_bytes_of_all(shards):
    files = shards(range(12), 1000)
    assert make_plan(files, []).lines() == [
        "delete nothing",
        "add 12 files (12,000 bytes)",
        *(f"  data/malta/train/{number:05d}.tar (1,000 bytes)" for number in range(10)),
        "  and 2 more",
        "change nothing",
        "keep nothing",
    ]
    assert not any("more" in line for line in make_plan(files[:10], []).lines())


@pytest.mark.parametrize(
    "path", ["../x", "data/../x", "/etc/x", "data//x", "data/.x", "data/x/", "data/a b", ""]
)
def test_a_path_that_leads_elsewhere_is_not_published(path):
    with pytest.raises(MillraceError, match="not a path that can be published"):
        make_plan([File.of(path, b"x")], [])
