"use strict";
// The requests of a run: filters, rows drawn a page at a time, texts side by side. Texts come from models: they are
// only ever put into the page as text.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const PAGE = 100;
  const NAMES = { c: "✓ correct", w: "✗ wrong", u: "✗ unparsed", t: "✗ truncated", n: "not scored", e: "! error", r: "✓ right", x: "✗ crossed", "-": "not judged" };
  const TONES = { c: "good", r: "good", w: "bad", u: "bad", t: "bad", x: "bad", n: "plain", e: "open", "-": "plain" };
  const RIGHT = "cr";
  const SHOWN = [
    ["all", "all requests", () => true],
    ["lost", "lost: right only on the baseline", (r) => isRight(r.base) && !isRight(r.mine) && !"-e".includes(r.mine)],
    ["gained", "gained: right only here", (r) => isRight(r.mine) && r.base !== "-" && !isRight(r.base)],
    ["differ", "texts differ", (r) => r.first !== null],
    ["bad", "not right", (r) => !isRight(r.mine) && r.mine !== "e"],
    ["error", "errors", (r) => r.mine === "e" || r.row in r.cell.error],
    ["tainted", "tainted by a fault", (r) => r.row in r.cell.tainted],
    ["canary", "canaries", (r) => r.row in r.cell.expected],
  ];
  const last = Number.POSITIVE_INFINITY;
  const ORDERS = [
    ["arrival", "order of arrival", (r) => r.row],
    ["question", "question", (r) => r.cell.sample[r.row]],
    ["slow", "slowest first", (r) => -(r.cell.e2e[r.row] ?? -last)],
    ["first", "earliest difference first", (r) => r.first ?? last],
    ["shift", "largest shift first", (r) => -(r.pairing?.shift[r.row] ?? -last)],
  ];
  let found = [];
  let drawn = 0;

  const isRight = (code) => code !== undefined && RIGHT.includes(code);
  const text = (number) => {
    if (number === undefined || number < 0) return null;
    const kept = data.texts[number];
    return typeof kept === "string" ? kept : data.texts[kept[0]].slice(0, kept[1]) + kept[2];
  };
  const make = (name, className, content) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (content !== undefined && content !== null) element.textContent = content;
    return element;
  };
  const options = (select, list) => {
    select.replaceChildren(...list.map(([value, name]) => {
      const option = make("option", "", name);
      option.value = value;
      return option;
    }));
  };

  function firstDifference(one, other) {
    if (one === null || other === null || one === other) return null;
    const shorter = Math.min(one.length, other.length);
    let i = 0;
    while (i < shorter && one[i] === other[i]) i += 1;
    // Not between the halves of a pair.
    if (i > 0 && /[\uD800-\uDBFF]/.test(one[i - 1])) i -= 1;
    return i;
  }

  function request(cell, row) {
    const pairing = cell.against[Number(at("against").value)];
    const other = pairing && pairing.cell >= 0 ? data.cells[pairing.cell] : null;
    const otherRow = pairing ? pairing.row[row] : -1;
    const mineText = text(cell.text[row]);
    const baseText = other && otherRow >= 0 ? text(other.text[otherRow]) : null;
    return {
      cell, row, pairing, other, otherRow, mineText, baseText,
      mine: cell.outcome[row],
      base: pairing ? pairing.outcome[row] : "-",
      first: firstDifference(mineText, baseText),
    };
  }

  function refresh() {
    const cell = data.cells[Number(at("cell").value)];
    const shows = SHOWN.find(([name]) => name === at("show").value)[2];
    const key = ORDERS.find(([name]) => name === at("order").value)[2];
    const wanted = at("search").value.toLowerCase();
    const all = cell ? cell.sample.map((_, row) => request(cell, row)) : [];
    found = all.filter((r) => shows(r) && matches(r, wanted));
    found = found.map((r) => [key(r), r]).sort((a, b) => a[0] - b[0] || a[1].row - b[1].row).map(([, r]) => r);
    let said = `${found.length} of ${all.length} requests`;
    if (data.left_out) said += `; ${data.left_out} texts are left out of this file to keep it small, they are in the cells' requests.jsonl`;
    at("count").textContent = said;
    at("rows").replaceChildren();
    drawn = 0;
    draw();
  }

  function matches(r, wanted) {
    if (!wanted) return true;
    const parts = [data.samples[r.cell.sample[r.row]], r.mineText, r.baseText, r.cell.answer[r.row], r.cell.error[r.row]];
    return parts.some((part) => part !== undefined && part !== null && part.toLowerCase().includes(wanted));
  }

  function draw() {
    const rows = found.slice(drawn, drawn + PAGE).map(row);
    at("rows").append(...rows);
    drawn += rows.length;
    const left = found.length - drawn;
    at("more").hidden = left <= 0;
    at("more").textContent = `Show ${Math.min(left, PAGE)} more of ${left}`;
  }

  const figure = (value) => (value === null || value === undefined ? "-" : value >= 100 ? String(Math.round(value)) : String(value));

  function row(r) {
    const line = make("tr");
    const head = make("th");
    head.scope = "row";
    const repeat = r.cell.repeat[r.row];
    const button = make("button", "open-row", data.samples[r.cell.sample[r.row]] + (repeat ? ` (repeat ${repeat})` : ""));
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => toggle(r, line, button));
    head.append(button);
    line.append(head, state(r.mine), state(r.base), make("td", "", difference(r)));
    line.append(make("td", "wide-only", figure(r.cell.ttft[r.row])), make("td", "wide-only", figure(r.cell.e2e[r.row])));
    line.append(make("td", "wide-only", figure(r.cell.tokens[r.row])));
    return line;
  }

  function state(code) {
    const field = make("td");
    field.append(code === "-" ? make("span", "plain", "-") : make("span", `state ${TONES[code]}`, NAMES[code]));
    return field;
  }

  function difference(r) {
    const token = r.pairing?.token[r.row];
    if (token !== undefined) return `token ${token}`;
    if (r.first !== null) return `character ${r.first}`;
    return r.mineText !== null && r.mineText === r.baseText ? "equal" : "-";
  }

  function toggle(r, line, button) {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) {
      line.nextElementSibling.remove();
      return;
    }
    const detail = make("tr");
    const field = make("td", "detail");
    field.colSpan = 7;
    const sides = make("div", "sides");
    sides.append(side("this cell", r.cell, r.row, r.mineText, r.first, r.mine, facts(r)));
    if (r.pairing) {
      const more = r.other ? own(r.other, r.otherRow) : [["", "its texts are not in this run"]];
      sides.append(side(r.pairing.name, r.other, r.otherRow, r.baseText, r.first, r.base, more));
    }
    const target = data.targets[r.cell.sample[r.row]];
    if (target) field.append(make("h4", "", "reference answer"), make("pre", "", target));
    field.append(sides);
    detail.append(field);
    line.after(detail);
  }

  function side(name, cell, row, shown, first, code, more) {
    const box = make("div", "side");
    const head = make("h4", "", `${name} `);
    head.append(make("span", `state ${TONES[code]}`, NAMES[code]));
    box.append(head);
    const answer = make("pre");
    if (shown === null) {
      const left = cell && row >= 0 && cell.text[row] === -2;
      answer.append(make("span", "same", left ? "left out of this file; it is in the cell's requests.jsonl" : "no text"));
    } else if (first === null) {
      answer.textContent = shown;
    } else {
      const rest = shown.slice(first);
      const word = rest.match(/^\s*[^\s]*/)[0] || rest.slice(0, 1);
      answer.append(make("span", "same", shown.slice(0, first)), make("mark", "", word || "⏎ ends here"), document.createTextNode(rest.slice(word.length)));
    }
    box.append(answer);
    const reasoning = cell && row >= 0 ? text(cell.reasoning[row]) : null;
    if (reasoning !== null) {
      const folded = make("details", "inner");
      folded.append(make("summary", "", "reasoning"), make("pre", "", reasoning));
      box.append(folded);
    }
    box.append(make("p", "note", more.map(([key, value]) => (key ? `${key} ${value}` : value)).join(" · ")));
    return box;
  }

  function own(cell, row) {
    if (row < 0) return [];
    const list = [
      ["answer", cell.answer[row]], ["expected", cell.expected[row]], ["error", cell.error[row]], ["tainted:", cell.tainted[row]],
      ["submitted at", `${cell.at[row]} s`], ["TTFT", ms(cell.ttft[row])], ["E2E", ms(cell.e2e[row])],
      ["prompt tokens", cell.prompt[row]], ["output tokens", cell.tokens[row]], ["ended by", cell.finish[row]],
      ["request", data.samples[cell.sample[row]] + cell.id_tail[row]],
    ];
    return list.filter(([, value]) => value !== null && value !== undefined);
  }

  const ms = (value) => (value === null ? null : `${value} ms`);

  function facts(r) {
    const p = r.pairing;
    const list = own(r.cell, r.row);
    if (!p) return list;
    const more = [
      ["order", r.row], ["in flight", p.concurrency[r.row]], ["prompt tokens modulo block", p.block_remainder[r.row]],
      ["prefill", p.prefill[r.row]], ["decode", p.decode[r.row]], ["shift in nats", p.shift[r.row]],
      ["ended last before it:", p.predecessor[r.row]], ["ms before:", p.since_finish_ms[r.row]],
    ];
    return list.concat(more.filter(([, value]) => value !== null && value !== undefined));
  }

  function choose(number) {
    const cell = data.cells[number];
    at("cell").value = String(number);
    options(at("against"), cell && cell.against.length ? cell.against.map((pairing, i) => [i, pairing.name]) : [[-1, "nothing"]]);
    const lost = cell && cell.sample.some((_, row) => SHOWN[1][2](request(cell, row)));
    at("show").value = lost ? "lost" : "all";
    refresh();
  }

  options(at("cell"), data.cells.map((cell, i) => [i, `${cell.id} (${cell.state.replace("_", " ")})`]));
  options(at("show"), SHOWN);
  options(at("order"), ORDERS);
  const worst = ["regression", "xpass", "failed", "invalid", "inconclusive", "xfail"];
  const ranks = data.cells.map((cell) => (cell.sample.length ? worst.indexOf(cell.state) : -1));
  const first = worst.map((_, rank) => ranks.indexOf(rank)).find((number) => number >= 0);
  choose(first ?? Math.max(0, data.cells.findIndex((cell) => cell.against.length)));

  at("filters").addEventListener("submit", (event) => event.preventDefault());
  at("cell").addEventListener("change", () => choose(Number(at("cell").value)));
  for (const id of ["against", "show", "order"]) at(id).addEventListener("change", refresh);
  at("search").addEventListener("input", refresh);
  at("more").addEventListener("click", draw);
  for (const button of document.querySelectorAll("button.show")) {
    button.addEventListener("click", () => {
      choose(Number(button.dataset.cell));
      at("requests").scrollIntoView();
      at("cell").focus({ preventScroll: true });
    });
  }
  const reveal = () => {
    const part = location.hash.length > 1 ? at(location.hash.slice(1)) : null;
    if (part instanceof HTMLDetailsElement) {
      part.open = true;
      part.scrollIntoView();
    }
  };
  addEventListener("hashchange", reveal);
  reveal();
})();
