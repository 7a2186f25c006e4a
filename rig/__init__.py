"""The orchestrator: config, plan, deployment, requests, evidence, verdict, report."""

from importlib.metadata import version

__version__ = version("pdrig")
