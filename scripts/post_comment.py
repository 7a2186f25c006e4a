"""Post a report on GitHub and keep it in one place: a comment or an issue that is updated, never one more.

    python scripts/post_comment.py pull 123 comment.md [--marker NAME]        one comment of a pull request
    python scripts/post_comment.py issue "Nightly sweep" red.md               one open issue of a title, made or edited
    python scripts/post_comment.py issue "Nightly sweep" --close              the same one, closed, where it is open

Reads GITHUB_TOKEN, GITHUB_REPOSITORY and GITHUB_API_URL. Needs no package: the job that has the token installs nothing
and runs no code of a pull request. Exit status: 0 done, 1 GitHub refused, 2 bad usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIMIT = 65_536
"""Characters of a comment or an issue that GitHub takes."""
CUT = "\n\n(Cut here: the whole report is among the artifacts of the job.)"
PER_PAGE = 100
BOT = "github-actions[bot]"
"""Who the token of a job writes as; a comment of somebody else is never edited, whatever it holds."""


class GitHub:
    """The calls that are needed, on one repository."""

    def __init__(self, api: str, repository: str, token: str) -> None:
        self.root = f"{api.rstrip('/')}/repos/{repository}"
        self.token = token

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Raises HTTPError."""
        request = urllib.request.Request(
            f"{self.root}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.token}",
                "Accept": "application/vnd.github+json",
                "Content-Type": "application/json",
                "X-GitHub-Api-Version": "2022-11-28",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def listed(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Every item of all pages."""
        page = 1
        while True:
            asked = urllib.parse.urlencode({**query, "per_page": PER_PAGE, "page": page})
            items = self.call("GET", f"{path}?{asked}")
            yield from items
            if len(items) < PER_PAGE:
                return
            page += 1


def fitted(text: str, foot: str = "") -> str:
    """The text within GitHub's limit, with a pointer where it was cut; `foot` always stands below it."""
    end = f"\n\n{foot}\n" if foot else "\n"
    room = LIMIT - len(end)
    return (text.rstrip() if len(text) <= room else text[: room - len(CUT)] + CUT) + end


def comment_on_pull(github: GitHub, number: int, text: str, marker: str, foot: str = "") -> str:
    """Edit the comment that carries the marker, or make it; returns its address."""
    sign = f"<!-- {marker} -->"
    body = {"body": fitted(f"{sign}\n{text}", foot)}
    for comment in github.listed(f"/issues/{number}/comments"):
        if comment["user"]["login"] == BOT and comment["body"].startswith(sign):
            return str(github.call("PATCH", f"/issues/comments/{comment['id']}", body)["html_url"])
    return str(github.call("POST", f"/issues/{number}/comments", body)["html_url"])


def keep_issue(github: GitHub, title: str, text: str | None) -> str:
    """Edit the open issue of this title, or make it; None as text closes it. Returns its address, or what was done."""
    issues = github.listed("/issues", state="open", creator=BOT)
    found = next((i for i in issues if i["title"] == title and "pull_request" not in i), None)
    if text is None:
        if found is None:
            return "no such issue is open"
        return str(github.call("PATCH", f"/issues/{found['number']}", {"state": "closed"})["html_url"])
    if found is None:
        return str(github.call("POST", "/issues", {"title": title, "body": fitted(text)})["html_url"])
    return str(github.call("PATCH", f"/issues/{found['number']}", {"body": fitted(text)})["html_url"])


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    pull = commands.add_parser("pull", help="one comment of a pull request")
    pull.add_argument("number", type=int)
    pull.add_argument("file", type=Path)
    pull.add_argument("--marker", default="pdrig", help="tells several such comments apart")
    pull.add_argument("--foot", default="", help="a line below the text")
    issue = commands.add_parser("issue", help="one open issue")
    issue.add_argument("title")
    issue.add_argument("file", type=Path, nargs="?")
    issue.add_argument("--close", action="store_true", help="close it in place of editing it")
    args = parser.parse_args(argv)
    if args.command == "issue" and args.close == (args.file is not None):
        parser.error("give either a file or --close")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parsed(argv)
    lacking = [name for name in ("GITHUB_TOKEN", "GITHUB_REPOSITORY") if not os.environ.get(name)]
    if lacking:
        print(f"post: {' and '.join(lacking)} must be set", file=sys.stderr)
        return 2
    api = os.environ.get("GITHUB_API_URL", "https://api.github.com")
    github = GitHub(api, os.environ["GITHUB_REPOSITORY"], os.environ["GITHUB_TOKEN"])
    if args.file is not None and (args.file.is_symlink() or not args.file.is_file()):
        # The file comes from a job that ran foreign code: a link could have the token's environment posted.
        print(f"post: {args.file} is no regular file", file=sys.stderr)
        return 2
    try:
        text = args.file.read_text(encoding="utf-8", errors="replace") if args.file else None
        if args.command == "pull":
            print(comment_on_pull(github, args.number, text or "", args.marker, args.foot))
        else:
            print(keep_issue(github, args.title, text))
    except urllib.error.HTTPError as error:
        print(f"post: {error.url}: {error.code} {error.reason}; does the job have the permission?", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"post: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
