"""Everything the rig raises on purpose.

RigError
+-- UsageError            exit 2: flags, files, data that the user can mend
|   +-- ConfigError       the YAML: names file, key, what was expected
|   |   `-- Unreadable    a file that is not there, or is no text
|   +-- DataError         task data that is missing or malformed
|   `-- EngineNotFound    the engine's command is not there
+-- DeployError           exit 3: a deployment did not come up, or died
|   +-- StartFailed       a server ended, or said it failed, before it was ready
|   +-- StartTimeout      a server was not ready within its limit
|   +-- NotUsable         healthy over HTTP, and useless: the full-path check says why
|   +-- ServerDied        a server ended while it was needed
|   +-- Hung              no request finished within the cell's limit
|   `-- PortLost          a planned port was taken by somebody else at run time
+-- RunError              exit 3: the rig itself could not do its part
`-- Interrupted           exit 130
"""

from __future__ import annotations


class RigError(Exception):
    """Base of all; `str(error)` is one line that says what to change."""

    exit_code = 3


class UsageError(RigError):
    exit_code = 2


class ConfigError(UsageError):
    """A sweep file that cannot be used.

    `file` is the path as the user gave it, `key` the dotted path within it (empty for the whole file).
    """

    def __init__(self, file: str, key: str, problem: str) -> None:
        self.file = file
        self.key = key
        self.problem = problem
        super().__init__(f"{file}: {key}: {problem}" if key else f"{file}: {problem}")


class Unreadable(ConfigError):
    pass


class DataError(UsageError):
    pass


class EngineNotFound(UsageError):
    """`key` is where the sweep file names the command; empty where that is not known."""

    def __init__(self, message: str, key: str = "") -> None:
        self.key = key
        super().__init__(message)


class DeployError(RigError):
    """A deployment that is not there; `server` names the one at fault, `log_line` is its decisive line."""

    def __init__(self, message: str, server: str | None = None, log_line: str | None = None) -> None:
        self.server = server
        self.log_line = log_line
        super().__init__(message)

    def add(self, text: str) -> None:
        """What else is known, behind what was said."""
        self.args = (f"{self}; {text}",)


class StartFailed(DeployError):
    pass


class StartTimeout(DeployError):
    pass


class NotUsable(DeployError):
    pass


class ServerDied(DeployError):
    pass


class Hung(DeployError):
    pass


class PortLost(DeployError):
    """`key` is where the sweep file gives the port; empty where that is not known."""

    def __init__(self, message: str, server: str | None = None, log_line: str | None = None, *, key: str = "") -> None:
        self.key = key
        super().__init__(message, server, log_line)


class RunError(RigError):
    pass


class Interrupted(RigError):
    exit_code = 130
