"use strict";
// What each figure shows: traces and axes for Plotly, a sentence, and the figures as a table.
// Traces of one `meta` are one series, shown and hidden together.

const lines = (name, x, y, hue, more = {}) => ({ type: "scatter", mode: "lines", name: plain(name), meta: name, colour: hue, x, y, line: { color: hue, width: 1.8, ...more.line }, hovertemplate: "%{y:.5~g}", ...more.trace });

function curve(id, title, key, better) {
  return {
    id, section: "learning", kind: "x", title,
    build() {
      const many = data.runs.length > 1, traces = [], hidden = [], { groups } = data;
      let longest = 0;
      const rounds = (curve) => curve.mean.map((_, t) => t + 1);
      groups.forEach((group, g) => ["test", "val"].forEach((split, s) => {
        const band = group[`${split}_${key}`];
        if (band.mean.every((x) => x === null)) return;
        longest = Math.max(longest, band.mean.length);
        const name = `${many ? `${group.label}, ` : ""}${s ? "validation" : "test"}`, hue = colour(many ? g : s);
        if (many && s) hidden.push(name);
        const dash = many && s ? "dot" : "solid", x = rounds(band);
        if (group.runs.length > 1) {
          const edge = (sign) => band.mean.map((m, t) => (m === null ? null : m + sign * band.std[t]));
          traces.push({ ...lines(name, x, edge(-1), hue, { line: { width: 0 } }), hoverinfo: "skip", hovertemplate: null });
          traces.push({ ...lines(name, x, edge(1), hue, { line: { width: 0 } }), hoverinfo: "skip", hovertemplate: null, fill: "tonexty", fillcolor: faint(hue, 0.18) });
        }
        traces.push(lines(name, x, band.mean, hue, { line: { dash }, trace: group.runs.length > 1 ? { customdata: band.std, hovertemplate: "%{y:.5~g} ± %{customdata:.2~g}" } : {} }));
      }));
      const told = groups.map((g) => ({ label: g.label, end: g[`test_${key}`].mean.at(-1), std: g[`test_${key}`].std.at(-1), runs: g.runs.length })).filter((g) => g.end !== undefined && g.end !== null);
      told.sort((a, b) => better * (b.end - a.end));
      const text = told.slice(0, 4).map((g) => `${many ? `${g.label}: ` : ""}${key === "accuracy" ? percent(g.end) : number(g.end)}${g.runs > 1 ? ` ± ${key === "accuracy" ? percent(g.std) : number(g.std, 2)} over ${g.runs} seeds` : ""}`).join("; ");
      if (!longest) return null;
      const one = longest === 1, ends = traces.flatMap((t) => t.y).filter((y) => y !== null), [low, high] = [Math.min(...ends), Math.max(...ends)];
      if (one) for (const trace of traces) Object.assign(trace, { mode: "markers", marker: { color: trace.colour, size: 8 } });
      const single = one ? { range: key === "accuracy" ? [0, 1] : [low - 0.1 * Math.abs(low || 1), high + 0.1 * Math.abs(high || 1)] } : {};
      const share = { tickformat: Math.max(...ends) - Math.min(...ends) < 0.06 && !one ? ".1%" : ".0%" };
      return {
        traces, hidden, text: told.length ? `${title.split(" ")[0]} on the test split after the last round: ${text}.` : "No round yet.",
        layout: { x: "round", y: key === "accuracy" ? "accuracy" : "loss, nats", xaxis: one ? { range: [0.5, 1.5], dtick: 1 } : {}, yaxis: { ...(key === "accuracy" ? share : {}), ...single } },
        table: () => ({
          head: ["runs", "round", ...["test", "validation"].flatMap((s) => [s, `${s} std`])],
          rows: groups.flatMap((g) => g[`test_${key}`].mean.map((_, t) => [g.label, t + 1, ...["test", "val"].flatMap((s) => [g[`${s}_${key}`].mean[t], g[`${s}_${key}`].std[t]])])),
        }),
      };
    },
  };
}

const valuesByRound = {
  id: "values", section: "contribution", kind: "x", title: "Value by round", modes: ["cumulative value", "sum of values"],
  build(mode) {
    const { clients, rounds, values } = run();
    if (!clients.some((c) => c.valued)) return null;
    const [value, error] = mode === "sum of values" ? [5, 6] : [3, 4], rows = [];
    const traces = picks().filter((id) => clients.some((c) => c.client === id)).map((id, n) => {
      const index = clients.findIndex((c) => c.client === id), points = [];
      values.forEach((row, t) => { const mine = row.find((v) => v[0] === index); if (mine) points.push([rounds.round[t], mine[value], mine[error], mine[1], mine[2]]); });
      rows.push(...points.map((p) => [id, ...p]));
      const hue = colour(n), many = points.length > 60;
      return lines(id, points.map((p) => p[0]), points.map((p) => p[1]), hue, {
        line: { shape: "hv", width: 1.5 },
        trace: {
          mode: "lines+markers", marker: { color: hue, size: many ? 3 : 5 }, customdata: points.map((p) => p[2]), hovertemplate: "%{y:.5~g} ± %{customdata:.2~g}",
          error_y: { type: "data", array: points.map((p) => p[2]), color: faint(hue, 0.55), thickness: 1, width: many ? 0 : 3 },
        },
      });
    });
    const told = traces.flatMap((t) => t.y).filter((y) => y !== null).sort((a, b) => a - b), at = (q) => told[Math.round(q * (told.length - 1))];
    const [low, high] = [at(0.05), at(0.95)], edge = 0.5 * (high - low);
    const clipped = told.length > 60 && edge > 0 && (told[0] < low - 4 * edge || told.at(-1) > high + 4 * edge);
    const range = clipped ? { yaxis: { range: [Math.max(told[0], low - edge), Math.min(told.at(-1), high + edge)] } } : {};
    const about = mode === "sum of values" ? "Sum of each client's Shapley values up to a round" : "Each client's cumulative value, by which the run selects";
    return {
      traces, height: 360, layout: { x: "round", y: `${mode}, nats`, ...range },
      text: `${about}; bars are standard errors of the valuation.${clipped ? " Outliers lie beyond the axis: − zooms out." : ""} The clients are chosen in the ledger above: ${picks().length} of ${clients.filter((c) => c.valued).length}.`,
      table: () => ({ head: ["client", "round", mode, "standard error", "value of the round", "its standard error"], rows }),
    };
  },
};

function quality(id, title, key, axis) {
  return {
    id, section: "qualities", kind: "point", title,
    build() {
      const clients = run().clients.filter((c) => c.valued && c[key] !== null && c[key] !== undefined);
      const xs = clients.map((c) => c[key]), ys = clients.map((c) => c.mean);
      if (new Set(xs).size < 2) return null;
      const rho = clients.length >= 5 ? `: rank correlation ${number(spearman(xs, ys), 2)} (Spearman)` : "", hue = colour(0);
      return {
        traces: [{
          type: "scatter", mode: "markers", name: "clients", meta: "clients", colour: hue, x: xs, y: ys, customdata: clients.map((c) => [plain(c.client), c.mean_se, c.valued]),
          hovertemplate: `<b>%{customdata[0]}</b><br>${axis} %{x:.4~g}<br>value %{y:.4~g} ± %{customdata[1]:.2~g}<br>mean of %{customdata[2]} rounds<extra></extra>`,
          marker: { color: hue, opacity: 0.7, size: clients.length > 100 ? 6 : 9 }, error_y: { type: "data", array: clients.map((c) => c.mean_se), color: faint(hue, 0.25), thickness: 1, width: 0 },
        }],
        layout: { x: axis, y: "mean value, nats", hovermode: "closest" }, height: 280,
        text: `Mean Shapley value of ${clients.length} clients against ${axis}${rho}.`,
        say: (_, i) => `${clients[i].client}: ${axis} ${number(xs[i])}, mean value ${number(ys[i])} ± ${number(clients[i].mean_se, 2)}`,
        table: () => ({ head: ["client", axis, "mean value", "standard error"], rows: clients.map((c) => [c.client, c[key], c.mean, c.mean_se]) }),
      };
    },
  };
}

function spearman(xs, ys) {
  const ranks = (v) => {
    const order = v.map((x, i) => [x, i]).sort((a, b) => a[0] - b[0]), rank = [];
    for (let i = 0, j; i < order.length; i = j) {
      for (j = i; j < order.length && order[j][0] === order[i][0]; ) j++;
      for (let k = i; k < j; k++) rank[order[k][1]] = (i + j - 1) / 2;
    }
    return rank;
  };
  const centred = (v) => v.map((x) => x - mean(v)), [a, b] = [centred(ranks(xs)), centred(ranks(ys))], dot = (u, v) => u.reduce((sum, x, i) => sum + x * v[i], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

// A row for each client, the largest sum of values on top.
const byRank = (clients) => ({
  title: { text: clients.length > 40 ? "clients, as in the ledger" : "", font: { size: 12 } }, range: [clients.length + 0.5, 0.5], zeroline: false, showgrid: false,
  ...(clients.length > 40 ? {} : { tickvals: clients.map((_, i) => i + 1), ticktext: clients.map((c) => plain(c.client, 18)) }),
});
const tall = (clients) => Math.min(Math.max(180, 90 + 18 * clients.length), 560);
const scaleBar = (text, more = {}) => ({ title: { text, side: "right" }, thickness: 10, outlinewidth: 0, len: 1, ...more });
const diverging = () => [[0, css("low")], [0.5, css("mid")], [1, css("high")]];

const selection = {
  id: "selection", section: "selection", kind: "grid", title: "Who was selected when", modes: ["outcome", "value"],
  build(mode) {
    const { clients, rounds, asked, values } = run(), outcomes = ["", "counted", "failed", "left out"], rows = [];
    if (!rounds.round.length) return null;
    const empty = () => clients.map(() => new Array(rounds.round.length).fill(null)), z = empty(), text = empty(), sizes = [];
    asked.forEach((row, t) => {
      const valueOf = new Map(values[t].map((v) => [v[0], v]));
      for (const [k, outcome] of row) {
        const value = valueOf.get(k);
        z[k][t] = mode === "value" ? (value ? value[1] : null) : outcome;
        if (value) sizes.push(Math.abs(value[1]));
        text[k][t] = `${clients[k].client}, round ${rounds.round[t]}: ${outcomes[outcome]}${value ? `, value ${number(value[1])} ± ${number(value[2], 2)}` : ""}`;
        rows.push([rounds.round[t], clients[k].client, outcomes[outcome], value?.[1] ?? null, value?.[2] ?? null]);
      }
    });
    const most = sizes.sort((a, b) => a - b)[Math.floor(0.97 * (sizes.length - 1))] || 1;
    const hues = [css("s1"), css("s2"), css("s5")], steps = hues.flatMap((hue, i) => [[i / 3, hue], [(i + 1) / 3, hue]]);
    const found = [...new Set(asked.flat().map(([, outcome]) => outcome))];
    const counts = clients.map((c) => c.asked), often = clients[counts.indexOf(Math.max(...counts))];
    return {
      traces: [{
        type: "heatmap", x: rounds.round, y: clients.map((_, k) => k + 1), z, text: text.map((row) => row.map((cell) => cell && plain(cell, 200))), hoverongaps: false, hovertemplate: "%{text}<extra></extra>", xgap: rounds.round.length > 120 ? 0 : 1, ygap: clients.length > 60 ? 0 : 1,
        ...(mode === "value" ? { zmin: -most, zmax: most, colorscale: diverging(), colorbar: scaleBar("value, nats") }
          : { zmin: 0.5, zmax: 3.5, colorscale: steps, showscale: found.length > 1, colorbar: scaleBar("", { tickvals: [1, 2, 3], ticktext: outcomes.slice(1) }) }),
      }],
      layout: { x: "round", y: "", hovermode: "closest", yaxis: byRank(clients), xaxis: { showgrid: false, zeroline: false, range: [rounds.round[0] - 0.5, rounds.round.at(-1) + 0.5] }, plot_bgcolor: css("none"), margin: { l: 56, r: 8, t: 8, b: 42 } },
      plain: !sizes.length, height: tall(clients), say: ([k, t]) => text[k][t] ?? `${clients[k].client}, round ${rounds.round[t]}: not asked`,
      text: `A row for each of ${clients.length} clients, ${clients.some((c) => c.valued) ? "the largest sum of values on top" : "in the order of the ledger"}; most often asked: ${often.client}, in ${often.asked} of ${rounds.round.length} rounds.${mode === "outcome" && found.length === 1 ? ` All requests: ${outcomes[found[0]]}.` : ""}${mode === "value" ? ` Colours end at ±${number(most, 2)} nats.` : ""}`,
      table: () => ({ head: ["round", "client", "outcome", "value", "standard error"], rows }),
    };
  },
};

function clientGrid(id, title, section, name, text, cells, scale) {
  return {
    id, section, kind: "grid", title,
    build() {
      const { clients } = run(), z = cells(clients), axis = name();
      if (!z || !z.some((row) => row)) return null;
      const width = Math.max(...z.map((row) => row?.length ?? 0)), full = z.map((row) => row ?? new Array(width).fill(null));
      return {
        traces: [{ type: "heatmap", z: full, x: [...Array(width).keys()], y: clients.map((_, k) => k + 1), customdata: clients.map((c) => new Array(width).fill(plain(c.client))), hoverongaps: false, hovertemplate: `%{customdata}<br>${axis} %{x}: %{z:.4~g}<extra></extra>`, ...scale(full) }],
        layout: { x: axis, y: "", hovermode: "closest", yaxis: byRank(clients), xaxis: { dtick: width > 30 ? undefined : 1, showgrid: false, zeroline: false, range: [-0.5, width - 0.5] } },
        height: tall(clients), text, say: ([k, c]) => `${clients[k].client}, ${axis} ${c}: ${number(full[k][c])}`,
        table: () => ({ head: ["client", ...Array.from({ length: width }, (_, c) => `${axis} ${c}`)], rows: clients.map((c, k) => [c.client, ...full[k]]) }),
      };
    },
  };
}
const labels = clientGrid("labels", "Label histograms, by value", "qualities", () => "class", "Share of each class among a client's examples; the largest sum of values on top.",
  (clients) => clients.map((c) => { const n = c.labels?.reduce((a, b) => a + b, 0); return n ? c.labels.map((x) => x / n) : null; }),
  () => ({ colorscale: [[0, css("none")], [1, css("s1")]], zmin: 0, zmax: 1, colorbar: scaleBar("share") }));
const classValues = clientGrid("classes", "Values by class", "qualities", () => (["column", "clusters"].includes(run().config["valuation-groups"]) ? "group" : "class"), "Sum over rounds of what each client contributed on each class, or each of the groups that valuation-groups names; the largest sum of values on top.",
  () => run().class_sums, (z) => { const most = Math.max(...z.flat().map((x) => Math.abs(x ?? 0)), 1e-12); return { colorscale: diverging(), zmin: -most, zmax: most, colorbar: scaleBar("nats") }; });

const efficiency = {
  id: "efficiency", section: "valuation", kind: "x", title: "Gain of a round, and what its values share out",
  build() {
    const { gains, rounds } = run(), x = rounds.round, of = (i) => gains.map((g) => g[i]);
    if (of(1).every((s) => s === null)) return null;
    const worst = gains.map((g, t) => [Math.abs(g[2] ?? 0), x[t]]).sort((a, b) => b[0] - a[0])[0];
    return {
      traces: [lines("gain", x, of(0), colour(0)), lines("sum of values", x, of(1), colour(1), { line: { dash: "dash" } }), lines("residual", x, of(2), colour(2))],
      layout: { x: "round", y: "nats" }, text: `A round's values add up to the fall of its validation loss; the largest residual is ${number(worst[0], 2)} nats, in round ${worst[1]}.`,
      table: () => ({ head: ["round", "gain", "sum of values", "residual"], rows: x.map((r, t) => [r, ...gains[t]]) }),
    };
  },
};

const ENDS = ["exact", "converged", "cap", "budget", "between", "none"];
const evaluations = {
  id: "evaluations", section: "valuation", kind: "x", title: "Evaluations of each valuation, and how it ended",
  build() {
    const { rounds } = run(), x = rounds.round, ends = ENDS.filter((end) => rounds.valuation_end.includes(end));
    if (!rounds.evaluations.some((n) => n)) return null;
    const traces = ends.map((end) => {
      const mine = x.map((_, t) => t).filter((t) => rounds.valuation_end[t] === end), hue = colour(ENDS.indexOf(end));
      return { type: "bar", name: end, meta: end, colour: hue, x: mine.map((t) => x[t]), y: mine.map((t) => rounds.evaluations[t]), marker: { color: hue, line: { width: 0 } }, hovertemplate: "%{y} evaluations" };
    });
    const sum = rounds.evaluations.reduce((a, b) => a + b, 0);
    return {
      traces, layout: { x: "round", y: "coalitions evaluated", barmode: "stack", bargap: x.length > 100 ? 0 : 0.15 },
      text: `${sum} ${sum === 1 ? "coalition was" : "coalitions were"} evaluated; ended: ${ends.map((end) => `${end} ${rounds.valuation_end.filter((e) => e === end).length}`).join(", ")}.`,
      table: () => ({ head: ["round", "evaluations", "ended"], rows: x.map((r, t) => [r, rounds.evaluations[t], rounds.valuation_end[t]]) }),
    };
  },
};

function stacked(id, title, key, axis, format) {
  return {
    id, section: "cost", kind: "x", title,
    build() {
      const phases = Object.entries(run()[key]), x = run().rounds.round;
      if (!x.length) return null;
      const traces = phases.map(([phase, y], i) => ({ type: "bar", name: phase, meta: phase, colour: colour(i), x, y, marker: { color: colour(i), line: { width: 0 } }, hovertemplate: format }));
      const means = phases.map(([phase, y]) => `${phase} ${number(mean(y), 3)}`).join(", ");
      return {
        traces, layout: { x: "round", y: axis, barmode: "stack", bargap: x.length > 100 ? 0 : 0.15 }, text: `Mean ${axis} a round: ${means}.`,
        table: () => ({ head: ["round", ...phases.map(([phase]) => phase)], rows: x.map((r, t) => [r, ...phases.map(([, y]) => y[t])]) }),
      };
    },
  };
}

const SPECS = [
  curve("accuracy", "Accuracy by round", "accuracy", 1), curve("loss", "Loss by round", "loss", -1),
  valuesByRound,
  quality("examples", "Data size", "examples", "number of examples"), quality("skew", "Label skew", "largest_class", "share of the largest class"),
  quality("noise", "Noise level", "noise", "noise level σ"), quality("straggling", "Straggling", "epochs", "local epochs"),
  labels, classValues, selection, efficiency, evaluations,
  stacked("seconds", "Seconds by phase", "seconds", "seconds", "%{y:.4~g} s"), stacked("bytes", "Bytes by direction", "bytes", "bytes", "%{y:.4~s}B"),
];
