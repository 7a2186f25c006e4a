"""The keys of `routers`: what stands between the legs. What each means for a user is in docs/routers.md."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from rig import routers_command
from rig.config_errors import shown
from rig.config_types import Env, Strict, Url, json_value, problem
from rig.routers import VLLM_ROUTER, VLLM_ROUTER_OWNED
from rig.secrets import holds_secret


def _command(words: list[str]) -> list[str]:
    if (wrong := routers_command.problem(words)) is not None:
        raise problem(wrong)
    return words


def _option(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise problem("an option's name as vllm-router has it, without dashes in front, such as policy, is expected")
    if name in VLLM_ROUTER_OWNED:
        raise problem("pdrig writes this option itself (`proxy.host` and `proxy.port` say where the router listens)")
    if name.endswith("api-key"):
        raise problem("a command is stored and shown; vllm-router takes the key from your shell's VLLM_API_KEY")
    return name


def _option_value(value: Any) -> Any:
    if value is False:
        raise problem("vllm-router has no options with --no- in front; null drops an option")
    if holds_secret(str(value)):
        raise problem("a command is stored and shown, so it holds no secrets; let vllm-router take them from `env`")
    return json_value(value)


def _path(path: str) -> str:
    if not re.fullmatch(r"/\S*", path):
        raise problem(f"expected a path such as /health, got {shown(path)}")
    if holds_secret(path):
        raise problem("a path is stored and shown, so it holds no secrets; name one that needs none")
    return path


def _open_url(url: str) -> str:
    if "@" in url:
        raise problem("a URL is stored and shown, so it holds no user and no password")
    if "?" in url or "#" in url:
        raise problem("paths are appended to this URL, so it has no ? and no #")
    return url


class RouterConfig(Strict):
    """A kind that the rig knows, any command, or the URL of a router that runs already."""

    kind: Literal["pdrig", "vllm-router"] | None = None
    command: Annotated[list[str], Field(min_length=1), AfterValidator(_command)] | None = None
    url: Annotated[Url, AfterValidator(_open_url)] | None = None
    venv: str | None = None
    args: dict[Annotated[str, AfterValidator(_option)], Annotated[Any, AfterValidator(_option_value)]] = {}
    env: Env = {}
    health: Annotated[str, AfterValidator(_path)] = "/health"

    @model_validator(mode="after")
    def _one_kind(self) -> RouterConfig:
        if sum(given is not None for given in (self.kind, self.command, self.url)) != 1:
            raise problem(
                "give one of `kind` (pdrig or vllm-router), `command`, and `url` of a router that runs already"
            )
        what = self.kind or ("a command" if self.command else "a router that runs already")
        taken = {
            "pdrig": (),
            VLLM_ROUTER: ("venv", "args", "env"),
            "a command": ("venv", "env", "health"),
        }.get(what, ("health",))
        for key in ("venv", "args", "env", "health"):
            if key in self.model_fields_set and key not in taken:
                raise problem(f"`{key}` is not for {what}; drop it")
        return self
