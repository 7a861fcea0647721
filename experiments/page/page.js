"use strict";
// The page's sections, theme and updates. charts.js draws the figures.

const live = document.documentElement.hasAttribute("data-live");
const ui = { run: 0, picked: null, modes: {}, hidden: {} };
let data = JSON.parse(document.getElementById("data").textContent);
const run = () => data.runs[Math.min(ui.run, data.runs.length - 1)];
const byId = (id) => document.getElementById(id);

// ---- sections ----------------------------------------------------------------------------------

const SHOWN = ["examples", "sum", "credit", "share", "mean", "latest", "cumulative", "asked", "answered", "failed", "left_out", "frequency", "marginal", "loss_without"];
const LABELS = { left_out: "left out", loss_without: "loss without", epochs: "epochs E", noise: "noise σ", epsilon: "ε", largest_class: "largest class" };
const ERRORS = { sum: "sum_se", mean: "mean_se", latest: "latest_se" };
const PERCENT = new Set(["credit", "share", "frequency", "largest_class"]);
const ABOUT = { epochs: "local epochs: fewer than the others' where it straggles", noise: "noise level that it adds to its update", epsilon: "privacy that it has spent at the run's δ", largest_class: "share of its commonest class among its examples" };

function ledgerTable(host) {
  const { clients } = run();
  const known = (key) => clients.some((c) => c[key] !== null && c[key] !== undefined);
  const largest = Math.max(...clients.map((c) => Math.abs(c.sum ?? 0)), 1e-300);
  const columns = [{ key: "client", label: "client", title: "Show or hide this client in the chart of values", cell: clientButton }];
  for (const key of [...SHOWN, ...Object.keys(ABOUT)].filter(known)) {
    columns.push({
      key, num: true, label: LABELS[key] ?? key, title: data.columns[key] ?? ABOUT[key], error: ERRORS[key],
      text: PERCENT.has(key) ? percent : null, part: key === "sum" ? (x) => Math.abs(x) / largest : null,
    });
  }
  const save = ["csv", "json"].map((form) => el("button", { type: "button", onclick: () => download(form) }, `Save ${form.toUpperCase()}`));
  const table = new Table(host, { title: "Contribution ledger", columns, rows: clients, wide: true, more: save });
  const terms = Object.entries({ ...data.columns, ...ABOUT }).flatMap(([key, text]) => [el("dt", {}, LABELS[key] ?? key), el("dd", {}, text)]);
  host.append(el("details", {}, el("summary", {}, "What the columns mean"), el("dl", {}, ...terms)));
  return table;
}

function clientButton(row) {
  const picked = row.valued > 0 && picks().includes(row.client);
  const button = el("button", {
    type: "button", class: "name", title: row.client, "data-key": row.client, disabled: row.valued ? null : "",
    "aria-pressed": row.valued ? String(picked) : null, onclick: () => pick(row.client),
  }, row.client);
  if (picked) button.style.setProperty("--c", `var(--s${(picks().indexOf(row.client) % 8) + 1})`);
  return button;
}

// The clients whose values are drawn by round: at first the five with the largest sum, and the last.
function picks() {
  if (ui.picked?.run === run().id) return ui.picked.clients;
  const valued = run().clients.filter((c) => c.valued).map((c) => c.client);
  return valued.length > 6 ? [...valued.slice(0, 5), valued.at(-1)] : valued;
}

function pick(client) {
  const now = picks();
  ui.picked = { run: run().id, clients: now.includes(client) ? now.filter((c) => c !== client) : [...now, client] };
  tables.ledger.update(run().clients);
  drawCharts();
}

function download(form) {
  const names = Object.keys(data.columns), { clients } = run();
  const quote = (x) => {
    const text = x === null || x === undefined ? "" : String(x).replace(/^(?=[=+\-@\t\r])/, typeof x === "number" ? "" : "'");
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const text = form === "csv"
    ? [names.join(","), ...clients.map((c) => names.map((n) => quote(c[n])).join(","))].join("\n") + "\n"
    : JSON.stringify({ run: run().id, state: run().state, columns: data.columns, clients: clients.map((c) => Object.fromEntries(names.map((n) => [n, c[n]]))) }, null, 2);
  const link = el("a", { download: `${run().id}-ledger.${form}`, href: URL.createObjectURL(new Blob([text])) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function comparisonTable(host) {
  const last = (curve) => curve.mean.length - 1;
  const rows = data.groups.map((group) => ({
    label: group.label, seeds: group.runs.length, rounds: last(group.test_accuracy) + 1,
    ...Object.fromEntries(["test_accuracy", "test_loss", "val_loss"].flatMap((key) => [[key, group[key].mean.at(-1)], [`${key}_std`, group[key].std.at(-1)]])),
    seconds: mean(group.runs.map((i) => mean(perRound(data.runs[i].seconds)))),
    bytes: mean(group.runs.map((i) => mean(perRound(data.runs[i].bytes)))),
    evaluations: mean(group.runs.map((i) => mean(data.runs[i].rounds.evaluations))),
  }));
  const figure = (key, label, title, error) => ({ key, label, title, error, num: true });
  return new Table(host, {
    title: "Runs compared", rows, limit: 30, sort: { key: "test_accuracy", down: true },
    columns: [
      { key: "label", label: "runs", title: "what differs in their configuration" },
      figure("seeds", "seeds", "runs of the group"), figure("rounds", "rounds", "rounds so far"),
      figure("test_accuracy", "test accuracy", "mean ± standard deviation over seeds, last round", "test_accuracy_std"),
      figure("test_loss", "test loss", "mean ± standard deviation over seeds, nats", "test_loss_std"),
      figure("val_loss", "validation loss", "mean ± standard deviation over seeds, nats", "val_loss_std"),
      figure("seconds", "seconds a round", "mean"), figure("bytes", "bytes a round", "mean, down and up"),
      figure("evaluations", "evaluations a round", "mean number of coalitions evaluated"),
    ],
  });
}
const mean = (xs) => (xs.length ? xs.reduce((a, b) => a + b, 0) / xs.length : null);
const perRound = (phases) => { const all = Object.values(phases); return (all[0] ?? []).map((_, t) => all.reduce((sum, phase) => sum + phase[t], 0)); };

function failureTables() {
  const { failures, refused } = run();
  const list = (host, title, who, rows, none) => {
    if (!rows.length) return host.replaceChildren(el("p", { class: "note" }, none));
    new Table(host, {
      title, sort: { key: "round", down: true },
      columns: [{ key: "round", label: "round", num: true }, { key: "who", label: who }, { key: "why", label: "reason" }],
      rows: rows.map(([round, name, why]) => ({ round, who: name, why })),
    });
  };
  list(byId("failed"), "Requests that failed", "client", failures, "No client failed.");
  list(byId("refused"), "Nodes that were refused", "node", refused, "No node was refused.");
}

function settingsTables() {
  const pairs = (title, object) => {
    const host = el("div", { class: "card" });
    new Table(host, { title, limit: 60, columns: [{ key: "key", label: "key" }, { key: "value", label: "value" }], rows: Object.entries(object).map(([key, value]) => ({ key, value: value === "" ? "(empty)" : String(value) })) });
    return host;
  };
  byId("settings").replaceChildren(pairs("Configuration", run().config), pairs("Versions", run().versions));
}

const QUESTIONS = { helped: "Which clients helped?", known: "How do we know?", cost: "What did it cost?" };
const tables = {};

function show() {
  const now = run(), many = data.runs.length > 1;
  byId("trouble").textContent = data.trouble ?? "";
  document.title = `${many ? `${data.runs.length} runs` : now.id} · GreedyFed`;
  byId("title").textContent = many ? `${data.groups.length > 1 ? data.groups.map((g) => g.label).join(" · ") : now.label.replace(/, seed .*/, "")}` : now.label;
  byId("state").replaceChildren(el("span", { class: `badge ${now.state}` }, now.state), ` ${now.label === byId("title").textContent ? "" : `${now.label}, `}`, el("code", {}, now.id));
  byId("figures").replaceChildren(...now.figures.map((f) => el("div", {}, el("dt", {}, f.label), el("dd", {}, f.value), el("dd", {}, f.note))));
  byId("answers").replaceChildren(...Object.entries(QUESTIONS).map(([key, question]) => el("article", {}, el("h2", {}, question), ...now.answers[key].map((text) => el("p", {}, text)))));
  byId("choice").hidden = !many;
  const options = data.runs.map((r, i) => el("option", { value: i }, r.label));
  byId("run").replaceChildren(...options);
  byId("run").value = ui.run;
  byId("comparison").hidden = !many;
  if (many && !tables.comparison) tables.comparison = comparisonTable(byId("comparison"));
  if (tables.ledger?.run === now.id && !tables.ledger.stale(now)) tables.ledger.table.update(now.clients);
  else tables.ledger = ledger(now);
  const state = JSON.stringify([now.id, now.failures.length, now.refused.length]);
  if (state !== tables.state) {
    tables.state = state;
    failureTables();
    settingsTables();
  }
  byId("made").textContent = `Made ${data.made} by greedyfed ${now.versions.greedyfed ?? ""} from ${many ? `${data.runs.length} run directories` : "one run directory"}. All figures are those of history.jsonl; losses and values are in nats.`;
}

function ledger(now) {
  const before = tables.ledger?.table, table = ledgerTable(byId("ledger"));
  if (before) Object.assign(table, { sort: before.sort, all: before.all });
  table.draw();
  const columns = (r) => SHOWN.concat(Object.keys(ABOUT)).filter((key) => r.clients.some((c) => c[key] !== null && c[key] !== undefined)).join();
  const made = columns(now);
  return { run: now.id, table, stale: (r) => columns(r) !== made, update: (rows) => table.update(rows) };
}

// ---- theme, navigation, updates ----------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";
try { theme = localStorage.getItem("greedyfed-theme") ?? "auto"; } catch { /* a file without storage */ }

function setTheme(name, keep = true) {
  theme = THEMES.includes(name) ? name : "auto";
  document.documentElement.dataset.theme = theme === "auto" ? (system.matches ? "dark" : "light") : theme;
  byId("theme").textContent = `Theme: ${theme}`;
  if (keep) try { localStorage.setItem("greedyfed-theme", theme); } catch { /* as above */ }
  if (window.drawCharts) drawCharts();
}
byId("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % 3]));
system.addEventListener("change", () => setTheme(theme));
byId("run").addEventListener("change", (event) => { ui.run = Number(event.target.value); show(); drawCharts(); });
for (const section of document.querySelectorAll("main > section")) {
  const name = section.id[0].toUpperCase() + section.id.slice(1);
  byId("sections").append(el("li", {}, el("a", { href: `#${section.id}` }, name)));
}

let tag = null;
async function poll() {
  let wait = 1000;
  try {
    const answer = await fetch("data.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status === 200) {
      tag = answer.headers.get("ETag");
      const news = await answer.json();
      data = news;
      show();
      drawCharts();
    }
    byId("trouble").textContent = data.trouble ?? "";
    if (data.runs.every((r) => r.state === "complete")) wait = 2000;
  } catch {
    byId("trouble").textContent = "greedyfed watch does not answer; this is what it showed last.";
    wait = 3000;
  }
  setTimeout(poll, wait);
}

setTheme(theme);
show();
if (live) poll();
