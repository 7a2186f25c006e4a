"""The script that posts reports on GitHub, against a server that keeps comments and issues as GitHub does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "post_comment.py"
BOT = {"login": "github-actions[bot]"}


class Hub(BaseHTTPRequestHandler):
    """Issues and comments of the repository me/vllm; a token that is not `good` is refused."""

    comments: list[dict[str, Any]]
    issues: list[dict[str, Any]]

    def log_message(self, *args: object) -> None:
        """Nothing on stderr."""

    def _answer(self, code: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _route(self) -> None:
        if self.headers["Authorization"] != "Bearer good":
            return self._answer(403, {"message": "no"})
        sent = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        url = urlsplit(self.path)
        parts = url.path.removeprefix("/repos/me/vllm/").split("/")
        query = {k: v[0] for k, v in parse_qs(url.query).items()}
        comments = parts[-1] == "comments" or parts[:2] == ["issues", "comments"]
        items = self.comments if comments else self.issues
        if self.command == "GET":
            first = (int(query["page"]) - 1) * int(query["per_page"])
            wanted = [i for i in items if comments or (i["state"] == "open" and i["user"]["login"] == query["creator"])]
            return self._answer(200, wanted[first : first + int(query["per_page"])])
        if self.command == "POST":
            number = len(items) + 1
            items.append(
                {"id": number, "number": number, "state": "open", "user": BOT, "html_url": f"at/{number}", **sent}
            )
            return self._answer(201, items[-1])
        found = next(i for i in items if i["number"] == int(parts[-1]))
        found.update(sent)
        return self._answer(200, found)

    do_GET = do_POST = do_PATCH = _route


@pytest.fixture
def hub() -> Iterator[Any]:
    handler = type("ThisHub", (Hub,), {"comments": [], "issues": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    handler.api = f"http://127.0.0.1:{server.server_port}"
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def post(hub: Any, *args: object, token: str = "good") -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    env |= {"GITHUB_TOKEN": token, "GITHUB_REPOSITORY": "me/vllm", "GITHUB_API_URL": hub.api}
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, args)], env=env, capture_output=True, text=True)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "comment.md"
    path.write_text(text)
    return path


def test_a_comment_is_made_once_and_then_edited_in_place(tmp_path: Path, hub: Any) -> None:
    # More than a page of others', one of which carries the marker and is somebody else's.
    others = [{"id": i, "number": i, "user": {"login": "you"}, "body": "<!-- m -->\nmine"} for i in range(1, 131)]
    hub.comments.extend(others)
    for text in ("first", "second"):
        done = post(hub, "pull", 7, written(tmp_path, text), "--marker", "m", "--foot", "Commit c0ffee")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "at/131\n"
    assert len(hub.comments) == 131
    assert hub.comments[-1]["body"] == "<!-- m -->\nsecond\n\nCommit c0ffee\n"
    assert all(c["body"] == "<!-- m -->\nmine" for c in hub.comments[:130])
    post(hub, "pull", 7, written(tmp_path, "another report"), "--marker", "n")
    assert len(hub.comments) == 132


def test_one_issue_while_nights_are_red_and_none_after_a_green_one(tmp_path: Path, hub: Any) -> None:
    hub.issues.append({"number": 1, "title": "red", "state": "open", "user": {"login": "you"}, "body": "mine"})
    assert "no such issue" in post(hub, "issue", "red", "--close").stdout
    for text in ("one night", "two nights"):
        assert post(hub, "issue", "red", written(tmp_path, text)).stdout == "at/2\n"
    assert [(i["state"], i["body"]) for i in hub.issues] == [("open", "mine"), ("open", "two nights\n")]
    assert post(hub, "issue", "red", "--close").returncode == 0
    assert [i["state"] for i in hub.issues] == ["open", "closed"]
    post(hub, "issue", "red", written(tmp_path, "again"))
    assert hub.issues[-1]["number"] == 3


def test_what_is_too_long_is_cut_with_a_pointer(tmp_path: Path, hub: Any) -> None:
    post(hub, "pull", 7, written(tmp_path, "x" * 70_000), "--foot", "Commit c0ffee")
    body = hub.comments[0]["body"]
    assert len(body) == 65_536
    assert body.endswith("artifacts of the job.)\n\nCommit c0ffee\n")


def test_a_link_in_place_of_the_report_is_not_followed(tmp_path: Path, hub: Any) -> None:
    (tmp_path / "comment.md").symlink_to("/proc/self/environ")
    done = post(hub, "pull", 7, tmp_path / "comment.md")
    assert done.returncode == 2
    assert "no regular file" in done.stderr
    assert hub.comments == []


def test_refusals_and_bad_usage_are_one_line(tmp_path: Path, hub: Any) -> None:
    file = written(tmp_path, "x")
    done = post(hub, "pull", 7, file, token="bad")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "403" in done.stderr
    assert "bad" not in done.stderr
    done = post(hub, "pull", 7, file, token="")
    assert (done.returncode, done.stderr) == (2, "post: GITHUB_TOKEN must be set\n")
    assert post(hub, "issue", "red").returncode == 2
    assert post(hub, "issue", "red", file, "--close").returncode == 2
