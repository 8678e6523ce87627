"""A small Hub of one's own on loopback: what `huggingface_hub` and `datasets` call, and which
clients, tokens and requests it refuses.

    python -m millrace.common.hub.server results/speech/hub/server --port 8017

It prints the variables that a client needs: HF_ENDPOINT, HF_TOKEN, which is new at each start and
is written nowhere, and HF_HUB_DISABLE_XET. It answers programs of this machine that have the token,
and no page of the web.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import secrets
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from millrace.common import cli
from millrace.common.errors import NO_ROOM, MillraceError
from millrace.common.hub.store import BRANCH, RefusedError, Repository, Store

_MAX_COMMIT_BYTES = 256 << 20
# As on the Hub: small texts go into the commit, all else is uploaded before it.
_TEXTS = (".md", ".json", ".jsonl", ".txt", ".yaml", ".csv", ".gitattributes")
_MAX_TEXT_BYTES = 10 << 20
_STORE = web.AppKey("store", Store)
_TOKEN = web.AppKey("token", str)
_NAME = "{name:[^/]+/[^/]+}"
_API = f"/api/{{kind:datasets|models}}/{_NAME}"
_routes = web.RouteTableDef()


def new_token() -> str:
    """A token that nobody can guess, for one server."""
    return secrets.token_urlsafe(32)


@contextlib.contextmanager
def serve(
    folder: str | Path, token: str, port: int = 0, middlewares: Sequence = ()
) -> Iterator[str]:
    """Serve the Hub in `folder` from a thread to clients with `token`; yields its endpoint,
    `http://127.0.0.1:PORT`."""
    app = web.Application(
        client_max_size=_MAX_COMMIT_BYTES, middlewares=[*middlewares, _answer_refusals]
    )
    app[_STORE] = Store(folder)
    app[_TOKEN] = token
    app.add_routes(_routes)
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    loop.run_until_complete(runner.setup())
    try:
        loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", port).start())
    except OSError as error:
        raise MillraceError("another program has this port", str(port), "Choose another") from error
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(runner.cleanup())
        loop.close()


@web.middleware
async def _answer_refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        _check_client(request)
        return await handler(request)
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # JSON of another shape
        return _json({"error": f"not a request of the client ({error!r})"}, status=400)
    except RefusedError as error:
        headers = {"X-Error-Code": error.code} if error.code else {}
        return _json({"error": str(error)}, status=error.status, headers=headers)
    except ConnectionResetError:  # the client has gone; nobody reads this
        return web.Response(status=400)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        # After a plain 500 the client would try again.
        return _json({"error": f"the local Hub: {error.strerror}"}, status=507)


def _check_client(request: web.Request) -> None:
    """Raise RefusedError for who is not meant: pages of the web, and programs that do not have the
    token."""
    # A page whose own name leads to this machine is no client, nor is one that a browser sends
    # here.
    if request.url.host not in ("127.0.0.1", "localhost"):
        raise RefusedError(403, "only 127.0.0.1 is served")
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "none")
    own = str(request.url.origin())
    if origin not in (None, own) or site not in ("none", "same-origin"):
        raise RefusedError(403, "pages of other origins are not served")

    if request.method == "PUT":  # the client sends no token there: its URL is signed
        given = request.query.get("key", "")
        due = _key(request.app, request.path)
    else:
        given = request.headers.get("Authorization", "")
        due = f"Bearer {request.app[_TOKEN]}"
    if not hmac.compare_digest(given.encode(), due.encode()):
        raise RefusedError(401, "the token is not the one that this server printed")


def _key(app: web.Application, path: str) -> str:
    """What has to stand in the URL of an upload."""
    return hmac.new(app[_TOKEN].encode(), path.encode(), "sha256").hexdigest()


def _repository(request: web.Request) -> Repository:
    path = request.match_info
    return Repository(request.app[_STORE], path.get("kind", "models"), path["name"])


def _commit_at(request: web.Request) -> dict:
    return _repository(request).commit_at(request.match_info.get("revision", BRANCH))


def _json(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    body = orjson.dumps(value)
    return web.Response(body=body, content_type="application/json", status=status, headers=headers)


@_routes.post("/api/validate-yaml")
async def _validate_yaml(_: web.Request) -> web.Response:
    return _json({"errors": [], "warnings": []})


@_routes.post("/api/repos/create")
async def _create(request: web.Request) -> web.Response:
    wish = await request.json()
    kind = f"{wish.get('type', 'model')}s"
    if kind not in ("datasets", "models"):
        raise RefusedError(400, f"{kind} are not served")
    name = f"{wish.get('organization') or 'local'}/{wish['name']}"
    is_private = wish.get("visibility") == "private"
    is_new = Repository(request.app[_STORE], kind, name).create(is_private)
    above = "datasets/" if kind == "datasets" else ""
    url = f"{request.url.origin()}/{above}{name}"
    return _json({"url": url, "name": name}, status=200 if is_new else 409)


@_routes.get(_API)
@_routes.get(f"{_API}/revision/{{revision}}")
async def _info(request: web.Request) -> web.Response:
    repository = _repository(request)
    commit = _commit_at(request)
    answer = {
        "id": repository.name,
        "sha": commit["oid"],
        "lastModified": commit["date"],
        "tags": [],
        "private": repository.is_private,
        "siblings": [{"rfilename": path} for path in commit["files"]],
    }
    return _json(answer)


@_routes.get(f"{_API}/tree/{{revision}}{{path:(/.*)?}}")
async def _tree(request: web.Request) -> web.Response:
    commit = _commit_at(request)
    folder = request.match_info["path"].strip("/")
    above = f"{folder}/" if folder else ""
    entries = [entry for path, entry in commit["entries"].items() if path.startswith(above)]
    if folder and not entries:
        raise RefusedError(404, f"no folder {folder!r}", "EntryNotFound")
    if request.query.get("recursive") != "true":
        depth = above.count("/")
        entries = [entry for entry in entries if entry["path"].count("/") == depth]
    return _json(entries)


@_routes.post(f"{_API}/paths-info/{{revision}}")
async def _paths_info(request: web.Request) -> web.Response:
    entries = _commit_at(request)["entries"]
    form = await request.post()
    paths = [path.strip("/") for path in form.getall("paths", [])]
    return _json([entries[path] for path in paths if path in entries])


@_routes.post(f"{_API}/preupload/{{revision}}")
async def _preupload(request: web.Request) -> web.Response:
    _commit_at(request)
    answers = (await request.json())["files"]
    for file in answers:
        is_text = file["path"].endswith(_TEXTS) and file["size"] <= _MAX_TEXT_BYTES
        file |= {"uploadMode": "regular" if is_text else "lfs", "shouldIgnore": False}
    return _json({"files": answers})


@_routes.get(f"{_API}/xet-write-token/{{revision}}")
async def _xet_token(_: web.Request) -> web.Response:
    raise RefusedError(400, "this Hub has no Xet store: set HF_HUB_DISABLE_XET=1")


@_routes.post(f"/{{kind:datasets}}/{_NAME}.git/info/lfs/objects/batch")
@_routes.post(f"/{_NAME}.git/info/lfs/objects/batch")
async def _lfs_batch(request: web.Request) -> web.Response:
    answers = (await request.json())["objects"]
    for answer in answers:
        if not request.app[_STORE].content(answer["oid"]).exists():
            path = f"/lfs/{answer['oid']}/{answer['size']}"
            url = f"{request.url.origin()}{path}?key={_key(request.app, path)}"
            answer["actions"] = {"upload": {"href": url}}
    return _json({"transfer": "basic", "objects": answers})


@_routes.put("/lfs/{sha256}/{size:[0-9]+}")
async def _put(request: web.Request) -> web.Response:
    """Take in a content. Of a body that breaks off, or goes on after its size, nothing is left."""
    store = request.app[_STORE]
    path = request.match_info
    size = int(path["size"])
    with tempfile.TemporaryDirectory(dir=store.uploads) as folder:
        partial = Path(folder, "content")
        with open(partial, "wb") as handle:
            async for data in request.content.iter_chunked(1 << 20):
                handle.write(data)
                if handle.tell() > size:
                    raise RefusedError(400, f"more than the {size} bytes that were due")
        await asyncio.to_thread(store.add, partial, path["sha256"], size)
    return web.Response()


@_routes.post(f"{_API}/commit/{{ref}}")
async def _commit(request: web.Request) -> web.Response:
    repository = _repository(request)
    body = await request.read()
    header, *operations = [orjson.loads(line) for line in body.splitlines()]
    if request.match_info["ref"] != BRANCH or "create_pr" in request.query:
        raise RefusedError(400, f"commits go to {BRANCH}")
    title = header["value"]["summary"]
    parent = header["value"].get("parentCommit")
    oid = await asyncio.to_thread(repository.change, title, parent, operations)
    url = f"{request.url.origin()}/{repository.name}/commit/{oid}"
    return _json({"success": True, "commitOid": oid, "commitUrl": url})


@_routes.get(f"/{{kind:datasets}}/{_NAME}/resolve/{{revision}}/{{path:.+}}")
@_routes.get(f"/{_NAME}/resolve/{{revision}}/{{path:.+}}")
async def _resolve(request: web.Request) -> web.StreamResponse:
    commit = _commit_at(request)
    path = request.match_info["path"]
    if path not in commit["files"]:
        raise RefusedError(404, f"no file {path!r}", "EntryNotFound")
    file = commit["files"][path]
    # The client takes the linked tag before `ETag`, which aiohttp makes of a file's time.
    headers = {"X-Repo-Commit": commit["oid"], "X-Linked-ETag": file.get("lfs", file)["oid"]}
    headers["Content-Type"] = "application/octet-stream"
    return web.FileResponse(request.app[_STORE].content(file["sha256"]), headers=headers)


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    parser.add_argument("folder", type=Path, help="what an upload step filled, or a new one")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    token = new_token()
    with serve(args.folder, token, args.port) as endpoint:
        print(f"HF_ENDPOINT={endpoint} HF_TOKEN={token} HF_HUB_DISABLE_XET=1", flush=True)
        signal.pause()


if __name__ == "__main__":
    raise SystemExit(main())
