"""A sweep and a machine in, everything that would run out. Pure: reads no file, looks at no process."""

from __future__ import annotations

import fnmatch
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal

from rig.config import Config
from rig.config_matrix import Cell
from rig.machine import Machine
from rig.plan_args import compact_json
from rig.plan_attach import attached_monolithic, attached_pd
from rig.plan_axes import check_axes
from rig.plan_baselines import attached_labels, find_cell, plan_monolithic
from rig.plan_hosts import remote_plan, where_to_start
from rig.plan_labels import (
    PASS,
    Labels,
    cell_ids,
    deployment_ids,
    extra_axes,
    matches,
    names_that_vary,
    pd_labels,
    read_match,
    with_passes,
)
from rig.plan_order import order_cells, with_baselines
from rig.plan_routers import plan_proxy
from rig.plan_rules import rule_notes
from rig.plan_servers import Draft, assign_gpus, check_ports, draft_alone, draft_pd
from rig.plan_tasks import plan_task, why_divergence_is_not_judged
from rig.planned import CellPlan, DeploymentPlan, Expectation, Keys, Limits, SweepPlan, TaskPlan
from rig.records import Gates
from rig.secrets import masked
from rig.yaml_source import KeyPath

Kind = Literal["pd", "monolithic"]


@dataclass
class _Entry:
    """A cell on its way into the plan; `drafts` are its servers before GPUs are chosen."""

    kind: Kind
    cell: Cell
    labels: Labels
    deployment: DeploymentPlan
    drafts: list[Draft]
    id: str = ""
    baselines: list[str] = field(default_factory=list)
    xfail: Expectation | None = None
    before: str | None = None

    @property
    def asked_for(self) -> bool:
        """Whether the sweep names it; a monolithic server that others are held against has no connector."""
        return self.deployment.connector is not None

    @property
    def needs(self) -> list[str]:
        """What has to run for this one to mean anything: its baselines, and the pass before it."""
        return [*self.baselines, *([self.before] if self.before else [])]


def plan_sweep(
    config: Config,
    machine: Machine,
    *,
    gpus: int | None = None,
    enough_gpus: bool = False,
    cell_glob: str | None = None,
    limit: int | None = None,
) -> SweepPlan:
    """Every cell with its exact commands, its baselines before it, cells of one deployment next to each other.

    `gpus` plans for that many GPUs in place of the machine's; `enough_gpus` for as many as are needed where the
    machine has none at all, to look at a plan made for another one. `cell_glob` keeps the cells whose id matches and
    their baselines; `limit` bounds every task's. Raises ConfigError for what cannot be planned.
    """
    return _Planner(config, machine).plan(gpus, enough_gpus, cell_glob, limit)


ASYNC_ON_CPU = (
    "vLLM's CPU platform turns async scheduling off whatever is asked (platforms/cpu.py of 0.32): cells that "
    "differ in async_scheduling alone run the same there; on GPUs they do not"
)


class _Planner:
    def __init__(self, config: Config, machine: Machine) -> None:
        self.config = config
        self.machine = machine
        self.extras = extra_axes(config.cells)
        self.limits = Limits(**config.sweep.limits.model_dump())
        self.notes: list[str] = []

    def plan(self, gpus: int | None, enough_gpus: bool, cell_glob: str | None, limit: int | None) -> SweepPlan:
        pd = self.pd_entries()
        monolithic = self.baselines(pd)
        entries = {entry.id: entry for entry in [*monolithic, *pd]}
        self.expectations(list(entries.values()))
        chosen = self.choose(entries, cell_glob)
        self.notes += rule_notes(
            self.config, [(e.id, e.cell, e.xfail is not None) for e in pd if e.id in chosen and e.kind == "pd"]
        )
        order = order_cells(
            {i: chosen[i].baselines for i in chosen},
            {i: chosen[i].deployment.id for i in chosen},
            {i: chosen[i].before for i in chosen},
        )
        if order is None:
            raise self.config.error(("baseline",), "the cells are baselines of one another in a circle; break it")
        most = max(sum(d.gpus_needed for d in e.drafts if d.server.host is None) for e in chosen.values())
        if gpus is None and enough_gpus and most and not self.machine.gpus:
            self.notes.append(f"no GPU is visible here: planned for the {most} that are needed (--gpus N plans for N)")
            available = tuple(str(i) for i in range(most))
        else:
            available = self.gpus(gpus)
        deployments: dict[str, DeploymentPlan] = {}
        for entry in (chosen[i] for i in order):
            if entry.deployment.id not in deployments:
                servers = assign_gpus(self.config, entry.drafts, available, most)
                deployments[entry.deployment.id] = replace(entry.deployment, servers=servers)
                self.notes += where_to_start(deployments[entry.deployment.id])
        if limit is not None:
            self.notes.append(f"--limit {limit}: every cell asks at most {limit} questions")
        if any(entry.before for entry in chosen.values()):
            self.notes.append(self.about_passes())
        if any(self.ignores_async(entry) for entry in chosen.values()):
            self.notes.append(ASYNC_ON_CPU)
        return SweepPlan(
            name=self.config.sweep.name,
            config_file=self.config.file,
            deployments=tuple(deployments.values()),
            cells=self.cell_plans([chosen[i] for i in order], limit),
            resolved=self.resolved([chosen[i] for i in order]),
            reference=tuple(self.config.sweep.reference),
            notes=tuple(self.notes),
        )

    def pd_entries(self) -> list[_Entry]:
        cells = self.excluded(
            [
                (cell, labels)
                for cell in self.config.cells
                for labels in with_passes(self.config, pd_labels(self.config, cell, self.extras))
            ]
        )
        seen: dict[str, Cell] = {}
        for cell, labels in cells:
            key = compact_json(sorted(labels.items()))
            if key in seen:
                at: KeyPath = next((o[:2] for o in cell.origins.values()), ("cell",))
                wanted = ", ".join(f"{n}: {compact_json(labels[n])}" for n in labels)
                raise self.config.error(at, f"two cells would have one id, both with {wanted}; drop one")
            seen[key] = cell
        varying = names_that_vary([labels for _, labels in cells])
        ids = cell_ids("pd", [labels for _, labels in cells], varying)
        running = deployment_ids("pd", [labels for _, labels in cells], varying)
        entries = []
        for (cell, labels), cell_id, deployment_id in zip(cells, ids, running, strict=True):
            deployment, drafts = self.pd_deployment(cell, deployment_id)
            entries.append(_Entry(deployment.kind, cell, labels, deployment, drafts, cell_id))
        check_axes(self.config, [(e.cell, self.signature(e)) for e in entries])
        _link_passes(entries)
        return entries

    def excluded(self, cells: list[tuple[Cell, Labels]]) -> list[tuple[Cell, Labels]]:
        """Without the matrix cells that `exclude` matches; cells of `include` are asked for by name and stay."""
        for i, entry in enumerate(self.config.sweep.exclude):
            at: KeyPath = ("exclude", i)
            if not entry:
                raise self.config.error(at, "an empty entry would exclude every cell; name some labels")
            wanted = read_match(self.config, at, entry, cells[0][1] if cells else ())
            if PASS in wanted:
                raise self.config.error((*at, PASS), "passes belong together; lower `passes` of the task instead")
            left = [(cell, labels) for cell, labels in cells if cell.included or not matches(labels, wanted)]
            if len(left) == len(cells):
                raise self.config.error(at, "matches no cell of the matrix; mend it or drop it")
            cells = left
        if not cells:
            raise self.config.error(("exclude",), "no cell is left")
        return cells

    def pd_deployment(self, cell: Cell, deployment_id: str) -> tuple[DeploymentPlan, list[Draft]]:
        model = self.config.sweep.models[cell.settings.model]
        deployment = DeploymentPlan(
            id=deployment_id,
            kind="pd",
            launcher=self.config.sweep.launcher,
            model=model.served_name or cell.settings.model,
            connector=cell.settings.kv_transfer_config.kv_connector,
            limits=self.limits,
            remote=remote_plan(self.config.sweep),
            kv_transfer={
                **cell.settings.kv_transfer_config.model_dump(),
                **cell.settings.prefill.kv_transfer_config,
            },
        )
        if self.config.sweep.attach is not None:
            return attached_pd(self.config, deployment, cell, self.machine), []
        if not cell.settings.prefill.instances:
            return replace(deployment, kind="monolithic"), [draft_alone(self.config, cell, self.machine)]
        drafts = draft_pd(self.config, cell, self.machine)
        urls = {role: [d.server.url for d in drafts if d.server.role == role] for role in ("prefill", "decode")}
        proxy = plan_proxy(self.config, cell, self.machine, urls["prefill"], urls["decode"])
        check_ports(self.config, drafts, cell.at(("proxy", "port")), proxy.ports)
        return replace(deployment, proxy=proxy), drafts

    def signature(self, entry: _Entry) -> str:
        """All that a cell would do, without what it is called."""
        servers = [(d.server.argv, d.server.env, d.server.host) for d in entry.drafts]
        proxy = asdict(replace(entry.deployment.proxy, keys=Keys())) if entry.deployment.proxy else None
        task = replace(self.task(entry, None), label="")
        return compact_json([servers, proxy, asdict(task)])

    def task(self, entry: _Entry, limit: int | None) -> TaskPlan:
        return plan_task(self.config, entry.cell, entry.labels[PASS], limit)

    def baselines(self, pd: list[_Entry]) -> list[_Entry]:
        """Fill in each cell's baselines; returns the monolithic cells, each once, in the order of first need."""
        needed: dict[str, _Entry] = {}
        users: dict[str, list[_Entry]] = {}
        ids = {entry.id: entry.labels for entry in pd}
        listed = isinstance(self.config.source.data.get("baseline"), list)
        for i, wanted in enumerate(self.config.sweep.baseline):
            at: KeyPath = ("baseline", i) if listed else ("baseline",)
            if wanted.stored is not None:
                continue
            if wanted.cell is not None:
                self.cell_baseline((*at, "cell"), wanted.cell, pd, ids)
                continue
            for entry in pd:
                made = self.monolithic(entry, i, at)
                if made is not None:
                    key = compact_json(sorted(made.labels.items()))
                    if key not in entry.baselines:
                        users.setdefault(key, []).append(entry)
                        entry.baselines.append(key)
                    if self.signature(made) != self.signature(needed.setdefault(key, made)):
                        raise self.config.error(
                            at,
                            f"two monolithic servers with other commands and equal labels, for {entry.id} and others; "
                            "pin what differs, or vary it as an axis",
                        )
        labels = [entry.labels for entry in needed.values()]
        varying = names_that_vary([*ids.values(), *labels])
        names = cell_ids("monolithic", labels, varying)
        running = deployment_ids("monolithic", labels, varying)
        for (key, made), cell_id, deployment_id in zip(needed.items(), names, running, strict=True):
            made.id, made.deployment = cell_id, replace(made.deployment, id=deployment_id)
            for user in users[key]:
                user.baselines = [cell_id if b == key else b for b in user.baselines]
            self.notes.append(self.about(made, [user.id for user in users[key]]))
        _link_passes(list(needed.values()))
        return list(needed.values())

    def monolithic(self, entry: _Entry, index: int, at: KeyPath) -> _Entry | None:
        attach, wanted = self.config.sweep.attach, self.config.sweep.baseline[index].monolithic
        assert wanted is not None
        model = entry.deployment.model
        deployment = DeploymentPlan("", "monolithic", self.config.sweep.launcher, model, None, limits=self.limits)
        deployment = replace(deployment, remote=remote_plan(self.config.sweep))
        if attach is None:
            made = plan_monolithic(self.config, entry.cell, self.machine, wanted, at, entry.labels, self.extras)
            return _Entry("monolithic", entry.cell, made.labels, deployment, [made.draft])
        if attach.monolithic is not None:
            labels = attached_labels(entry.labels, self.extras)
            return _Entry("monolithic", entry.cell, labels, attached_monolithic(attach.monolithic, deployment), [])
        if "baseline" in self.config.sweep.model_fields_set:
            raise self.config.error(at, "needs a server under attach.monolithic; give one, or say `baseline: none`")
        note = "attach.monolithic is not given: the cells have no monolithic baseline"
        if note not in self.notes:
            self.notes.append(note)
        return None

    def cell_baseline(self, at: KeyPath, match: dict[str, Any], pd: list[_Entry], ids: dict[str, Labels]) -> None:
        wanted = read_match(self.config, at, match, pd[0].labels)
        found = {entry.id: find_cell(wanted, entry.labels, ids) for entry in pd}
        without = [cell_id for cell_id, baseline in found.items() if baseline is None]
        if all(baseline in (None, cell_id) for cell_id, baseline in found.items()):
            raise self.config.error(at, "is the baseline of no cell: nothing else in the sweep has these labels")
        for entry in pd:
            baseline = found[entry.id]
            if baseline is not None and baseline != entry.id and baseline not in entry.baselines:
                entry.baselines.append(baseline)
        if without:
            labels = ", ".join(f"{name}: {compact_json(value)}" for name, value in wanted.items())
            self.notes.append(f"no cell with {labels} to hold against: {', '.join(without)}")

    def about(self, made: _Entry, users: list[str]) -> str:
        for_whom = f"held against: {', '.join(users)}"
        if not made.drafts:
            return f"{made.id}: the attached monolithic server; {for_whom}"
        server = made.drafts[0].server
        on = "on" if made.labels["async_scheduling"] else "off"
        flags = " ".join(server.argv[server.argv.index("-tp") + 2 :])
        return f"{made.id}: monolithic, TP {server.tp}, async scheduling {on}, no KV transfer ({flags}); {for_whom}"

    def about_passes(self) -> str:
        if self.config.sweep.attach is not None:
            return "attached servers are not restarted: the first pass over the questions is as cold as they are"
        return "servers are fresh for the first pass over the questions, and stay as they are for the next ones"

    def expectations(self, entries: list[_Entry]) -> None:
        for i, expected in enumerate(self.config.sweep.expect):
            wanted = read_match(self.config, ("expect", i, "match"), expected.match, entries[0].labels)
            hit = [entry for entry in entries if entry.asked_for and matches(entry.labels, wanted)]
            if not hit:
                raise self.config.error(("expect", i, "match"), "matches no cell; mend it or drop it")
            for entry in hit:
                if entry.xfail is not None:
                    raise self.config.error(("expect", i, "match"), f"{entry.id} is matched by an earlier entry too")
                entry.xfail = Expectation(expected.xfail.reason, expected.xfail.issue)

    def choose(self, entries: dict[str, _Entry], glob: str | None) -> dict[str, _Entry]:
        if glob is None:
            return entries
        hit = [cell_id for cell_id in entries if fnmatch.fnmatchcase(cell_id, glob)]
        if not hit:
            raise self.config.error((), f"--cell {glob} matches no cell; the cells are {', '.join(entries)}")
        keep = with_baselines(hit, {cell_id: entry.needs for cell_id, entry in entries.items()})
        return {cell_id: entry for cell_id, entry in entries.items() if cell_id in keep}

    def gpus(self, wanted: int | None) -> tuple[str, ...]:
        have = self.machine.gpus
        if wanted is None or wanted == len(have):
            return have
        self.notes.append(f"--gpus {wanted}: planned for {wanted} GPUs, {len(have)} are visible here")
        return have[:wanted] if wanted < len(have) else tuple(str(i) for i in range(wanted))

    def ignores_async(self, entry: _Entry) -> bool:
        """Whether async scheduling is asked of a vLLM that serves on a CPU."""
        engine = self.config.sweep.engines[entry.cell.settings.engine]
        is_vllm = engine.venv is not None or (engine.command is not None and PurePath(engine.command[0]).name == "vllm")
        return is_vllm and engine.device == "cpu" and entry.cell.settings.async_scheduling

    def cell_plans(self, entries: list[_Entry], limit: int | None) -> tuple[CellPlan, ...]:
        held_against = {b for entry in entries for b in entry.baselines}
        plans = tuple(self.cell_plan(entry, limit, entry.id in held_against) for entry in entries)
        if why := why_divergence_is_not_judged(plans, self.config.sweep.noise_floor):
            self.notes.append(f"divergence is not judged: {why}")
        return plans

    def cell_plan(self, entry: _Entry, limit: int | None, is_baseline: bool) -> CellPlan:
        sweep = self.config.sweep
        alone = entry.labels[PASS] is None
        stored = next((b.stored for b in sweep.baseline if b.stored), None) if entry.kind == "pd" else None
        held = bool(entry.baselines or stored) and alone
        return CellPlan(
            id=entry.id,
            labels=entry.labels,
            kind=entry.kind,
            deployment=entry.deployment.id,
            task=self.task(entry, limit),
            gates=Gates(**sweep.gates.model_dump()),
            baselines=tuple(entry.baselines),
            xfail=entry.xfail,
            fresh=entry.labels[PASS] == 1,
            continues=entry.before is not None,
            is_baseline=is_baseline,
            stored=stored,
            noise_floor=sweep.noise_floor if is_baseline and alone else 0,
            early_stop=held and not is_baseline and sweep.early_stop,
            rerun=held and sweep.rerun and not entry.xfail and sweep.launcher != "attach",
            seed=sweep.seed,
        )

    def resolved(self, entries: list[_Entry]) -> dict[str, Any]:
        """The file with every default filled in and every cell complete; secrets masked."""
        whole = self.config.sweep.model_dump(exclude={"cell", "matrix", "include", "exclude", "reference"})
        whole["cells"] = {e.id: e.cell.settings.model_dump() for e in entries if e.asked_for}
        return {key: _masked_tree(value, key) for key, value in whole.items()}


def _link_passes(entries: list[_Entry]) -> None:
    """Tell each pass which one it follows."""
    latest: dict[str, str] = {}
    for entry in entries:
        if entry.labels[PASS] is not None:
            key = compact_json(sorted({**entry.labels, PASS: None}.items()))
            entry.before = latest.get(key)
            latest[key] = entry.id


def _masked_tree(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        if key == "env":
            shown = masked({name: text for name, text in value.items() if text is not None})
            return {name: shown.get(name) for name in value}
        return {name: _masked_tree(child, name) for name, child in value.items()}
    return [_masked_tree(child) for child in value] if isinstance(value, list) else value
