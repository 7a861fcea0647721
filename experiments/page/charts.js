"use strict";
// The figures. Each is drawn when it comes near the screen, and answers to mouse, touch and keys.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const colour = (i) => css(`s${(i % 8) + 1}`);
// Plotly reads some HTML in its texts; names of clients are not to be read as such.
const plain = (text, most = 40) => (text.length > most ? `${text.slice(0, most - 1)}…` : text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const faint = (hex, alpha) => `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;
const touch = matchMedia("(pointer: coarse)").matches;

function layoutOf({ x, y, hovermode = "x unified", ...more }) {
  const axis = (title) => ({ title: { text: title, font: { size: 12 } }, gridcolor: css("line"), zerolinecolor: css("line"), linecolor: css("line"), automargin: true, ...more.axis });
  const { xaxis, yaxis, axis: _, ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, uirevision: "kept", hovermode, dragmode: touch ? false : "zoom",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("muted") }, margin: { l: 56, r: 12, t: 8, b: 42 },
    hoverlabel: { bgcolor: css("card"), bordercolor: css("line"), font: { color: css("ink"), size: 12 } },
    xaxis: { ...axis(x), ...xaxis }, yaxis: { ...axis(y), ...yaxis }, ...rest,
  };
}

class Chart {
  constructor(spec) {
    Object.assign(this, { spec, near: false, drawn: false, cursor: null });
    const id = `chart-${spec.id}`;
    this.sub = el("p", { class: "sub", id: `${id}-text` });
    this.chips = el("div", { class: "chips", role: "group", "aria-label": `Series of ${spec.title}` });
    this.modes = el("div", { class: "modes", role: "group", "aria-label": `What ${spec.title} shows` });
    this.plot = el("div", { class: "plot", "aria-hidden": "true" });
    this.readout = el("p", { class: "readout", "aria-live": "polite" });
    this.box = el("div", {
      class: "chart", id, tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": spec.title,
      "aria-describedby": `${id}-text`, onkeydown: (event) => this.key(event), onblur: () => this.leave(),
    }, this.plot);
    const tool = (text, label, act) => el("button", { type: "button", "aria-label": `${label}: ${spec.title}`, title: label, onclick: act }, text);
    const tools = el("div", { class: "tools" }, tool("+", "Zoom in", () => this.zoom(0.5)), tool("−", "Zoom out", () => this.zoom(2)), tool("Reset", "Reset the zoom", () => this.reset()));
    this.table = el("div");
    this.details = el("details", { ontoggle: () => this.fill() }, el("summary", {}, "Figures as a table"), this.table);
    this.element = el("figure", { id: `figure-${spec.id}`, "aria-labelledby": `${id}-title`, class: spec.kind === "grid" ? "broad" : null }, el("figcaption", {}, el("h3", { id: `${id}-title` }, spec.title), tools), this.sub, this.modes, this.chips, this.box, this.readout, this.details);
    for (const mode of spec.modes ?? []) this.modes.append(el("button", { type: "button", onclick: () => { ui.modes[spec.id] = mode; this.draw(); } }, mode));
  }
  get mode() { return ui.modes[this.spec.id] ?? this.spec.modes?.[0]; }
  get hidden() { return (ui.hidden[this.spec.id] ??= new Map()); }

  draw() {
    const built = this.spec.build(this.mode);
    this.element.hidden = built === null;
    if (built === null) return;
    this.built = built;
    this.sub.textContent = built.text;
    this.modes.hidden = !this.modes.children.length || Boolean(built.plain);
    for (const button of this.modes.children) button.setAttribute("aria-pressed", String(button.textContent === this.mode));
    this.series();
    this.box.style.setProperty("--height", `${built.height ?? 300}px`);
    if (!this.near) return;
    for (const trace of built.traces) trace.visible = !this.off(trace.meta, built);
    Plotly.react(this.plot, built.traces, layoutOf(built.layout), { displayModeBar: false, responsive: true, showTips: false });
    if (!this.drawn) performance.mark(`drawn ${this.spec.id}`);
    this.drawn = true;
    this.box.dataset.drawn = "true";
    if (this.details.open) this.fill();
  }
  off(name, built) { return this.hidden.get(name) ?? Boolean(built.hidden?.includes(name)); }
  series() {
    const names = new Map();
    for (const trace of this.built.traces) if (trace.meta && !names.has(trace.meta)) names.set(trace.meta, trace.colour);
    const focus = document.activeElement?.parentElement === this.chips ? document.activeElement.dataset.name : null;
    this.chips.replaceChildren(...(names.size < 2 ? [] : [...names].map(([name, hue]) => {
      const button = el("button", { type: "button", "data-name": name, title: name, "aria-pressed": String(!this.off(name, this.built)), onclick: () => { this.hidden.set(name, !this.off(name, this.built)); this.draw(); } }, el("span", {}, name));
      button.style.setProperty("--c", hue);
      return button;
    })));
    this.chips.hidden = names.size < 2;
    if (focus) [...this.chips.children].find((b) => b.dataset.name === focus)?.focus();
  }
  fill() {
    if (!this.details.open) return;
    const { head, rows } = this.built.table();
    const columns = head.map((label, i) => ({ key: `c${i}`, label, num: rows.some((r) => typeof r[i] === "number") }));
    new Table(this.table, { title: this.spec.title, level: "h4", limit: 15, columns, rows: rows.map((row) => Object.fromEntries(row.map((value, i) => [`c${i}`, value]))) });
  }

  axes() { return this.spec.kind === "x" ? ["xaxis"] : ["xaxis", "yaxis"]; }
  zoom(factor) {
    const update = {};
    for (const axis of this.axes()) {
      const [low, high] = this.plot.layout[axis].range.map(Number);
      const at = this.cursor?.[axis] ?? (low + high) / 2, inside = Math.min(Math.max(at, Math.min(low, high)), Math.max(low, high));
      update[`${axis}.range`] = [inside + (low - inside) * factor, inside + (high - inside) * factor];
    }
    Plotly.relayout(this.plot, update);
  }
  reset() {
    const range = (axis) => this.built.layout[axis]?.range ? { [`${axis}.range`]: [...this.built.layout[axis].range] } : { [`${axis}.autorange`]: this.built.layout[axis]?.autorange ?? true };
    Plotly.relayout(this.plot, { ...range("xaxis"), ...range("yaxis") });
  }
  leave() { this.cursor = null; this.readout.textContent = ""; if (this.drawn) Plotly.Fx.unhover(this.plot); }

  key(event) {
    if (event.target !== this.box || !this.drawn || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const far = event.shiftKey ? 10 : 1;
    if (step && (step[0] || this.spec.kind === "grid")) this.move(step[0] * far, step[1] * far);
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0") this.reset();
    else if (event.key === "Escape") this.leave();
    else return;
    event.preventDefault();
  }
  // Moves the readout: along x, from point to point, or over the cells of a grid.
  move(right, down) {
    const traces = this.plot.data.map((trace, n) => ({ trace, n })).filter(({ trace }) => trace.visible !== false && trace.hoverinfo !== "skip");
    const within = (i, count) => Math.min(Math.max(i, 0), count - 1);
    if (!traces.length) return;
    if (this.spec.kind === "grid") {
      const { trace, n } = traces[0], at = this.cursor?.cell ?? [0, -1];
      const cell = [within(at[0] + down, trace.z.length), within(at[1] + right, trace.z[0].length)];
      this.cursor = { cell, xaxis: trace.x?.[cell[1]] ?? cell[1], yaxis: trace.y?.[cell[0]] ?? cell[0] };
      this.readout.textContent = this.built.say(cell);
      if (trace.z[cell[0]][cell[1]] !== null) Plotly.Fx.hover(this.plot, [{ curveNumber: n, pointNumber: cell }]);
      else Plotly.Fx.unhover(this.plot);
      return;
    }
    if (this.spec.kind === "point") {
      const points = traces.flatMap(({ trace, n }) => trace.x.map((x, i) => ({ x, y: trace.y[i], n, i }))).sort((a, b) => a.x - b.x || a.y - b.y);
      const index = within((this.cursor?.index ?? -1) + right, points.length), point = points[index];
      this.cursor = { index, xaxis: point.x, yaxis: point.y };
      this.readout.textContent = this.built.say(point.n, point.i);
      Plotly.Fx.hover(this.plot, [{ curveNumber: point.n, pointNumber: point.i }]);
      return;
    }
    const xs = [...new Set(traces.flatMap(({ trace }) => trace.x))].sort((a, b) => a - b);
    const index = within((this.cursor?.index ?? -1) + right, xs.length), x = xs[index];
    this.cursor = { index, xaxis: x };
    const found = traces.map(({ trace }) => ({ trace, i: trace.x.indexOf(x) })).filter((f) => f.i >= 0 && f.trace.y[f.i] !== null);
    this.readout.textContent = `round ${x}: ${found.map(({ trace, i }) => `${trace.meta} ${number(trace.y[i])}`).join(", ") || "nothing"}`;
    Plotly.Fx.hover(this.plot, { xval: x }, "xy");
  }
}

const HELP = "In a chart: ← → read values (↑ ↓ in a heat map, Shift for ten), + − zoom, 0 resets, Esc ends.";
const charts = SPECS.map((spec) => new Chart(spec));
for (const chart of charts) document.querySelector(`[data-charts="${chart.spec.section}"]`).append(chart.element);
byId("made").before(el("p", { class: "note" }, HELP));

function drawCharts() {
  for (const section of document.querySelectorAll("main > section")) section.hidden = false; // Plotly measures
  for (const chart of charts) chart.draw();
  for (const section of ["learning", "selection", "valuation", "cost"]) {
    const empty = charts.every((c) => c.spec.section !== section || c.element.hidden) && byId("comparison").parentElement.id + byId("comparison").hidden !== `${section}false`;
    byId(section).hidden = empty;
    document.querySelector(`#sections [href="#${section}"]`).parentElement.hidden = empty;
  }
  const none = !charts.some((c) => c.spec.section === "qualities" && !c.element.hidden);
  byId("unknown").textContent = none ? run().clients.some((c) => c.valued) ? "Fewer than two valued clients differ in what is known of them." : "This run values no client." : "";
}
function drawAll() {
  for (const chart of charts) if (!chart.near) { chart.near = true; chart.draw(); }
}

drawCharts();
const watching = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    const chart = charts.find((c) => c.box === target);
    if (isIntersecting && !chart.near) { chart.near = true; chart.draw(); watching.unobserve(target); }
  }
}, { rootMargin: "300px" });
for (const chart of charts) watching.observe(chart.box);

// Paper is light, and narrower than most screens.
let before = null;
addEventListener("beforeprint", () => {
  before = theme;
  setTheme("light", false);
  drawAll();
  for (const chart of charts) if (chart.drawn) { chart.draw(); Plotly.relayout(chart.plot, { width: 660, autosize: false }); }
});
addEventListener("afterprint", () => {
  setTheme(before);
  for (const chart of charts) if (chart.drawn) { Plotly.relayout(chart.plot, { width: null, autosize: true }); chart.draw(); }
});
document.documentElement.dataset.ready = "true";
