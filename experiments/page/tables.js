"use strict";
// Elements, numbers and sortable tables. Texts are only ever set as text, never read as HTML.

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function number(x, digits = 4) {
  if (x === null || x === undefined) return "–";
  if (Number.isInteger(x)) return String(x).replace("-", "−");
  const text = x !== 0 && Math.abs(x) < 1e-4 ? x.toExponential(1) : String(Number(x.toPrecision(digits)));
  return text.replace("-", "−").replace("e−", "e−").replace("e-", "e−");
}
const percent = (x) => (x === null || x === undefined ? "–" : `${(100 * x).toFixed(1).replace("-", "−")}%`);

// columns: {key, label, title, text(row), error, num, cell(row)}; rows: objects. Cells keep the
// value with all its digits in data-value and in their tooltip.
class Table {
  constructor(host, { title, columns, rows, sort = null, limit = 20, wide = false, level = "h3", more = [] }) {
    Object.assign(this, { columns, rows, sort, limit, wanted: "", all: false });
    this.body = el("tbody");
    this.heads = new Map();
    const heads = columns.map((column) => {
      const button = el("button", { type: "button", title: column.title, onclick: () => this.sortBy(column) }, column.label);
      const head = el("th", { scope: "col", class: column.num ? "num" : null, "data-column": column.key, "aria-sort": "none" }, button);
      this.heads.set(column.key, head);
      return head;
    });
    const table = el("table", { class: wide ? "wide" : null, "aria-label": title }, el("thead", {}, el("tr", {}, ...heads)), this.body);
    this.more = el("button", { type: "button", class: "more", onclick: () => { this.all = !this.all; this.draw(); } });
    this.find = el("input", { type: "search", oninput: () => { this.wanted = this.find.value.toLowerCase(); this.draw(); } });
    this.search = el("label", {}, "Find ", this.find);
    host.replaceChildren(
      el("div", { class: "head" }, el(level, {}, title), this.search, ...more),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${title}, table` }, table),
      this.more,
    );
    this.draw();
  }
  update(rows) {
    const focus = document.activeElement?.dataset?.key;
    this.rows = rows;
    this.draw();
    if (focus) this.body.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus();
  }
  sortBy(column) {
    const down = this.sort?.key === column.key ? !this.sort.down : Boolean(column.num);
    this.sort = { key: column.key, down };
    this.draw();
  }
  draw() {
    const { sort } = this;
    let rows = this.wanted ? this.rows.filter((row) => this.columns.some((c) => String(row[c.key] ?? "").toLowerCase().includes(this.wanted))) : [...this.rows];
    if (sort) {
      const missing = (x) => x === null || x === undefined;
      rows.sort((a, b) => {
        const [x, y] = [a[sort.key], b[sort.key]];
        if (missing(x) || missing(y)) return missing(x) - missing(y);
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
        return sort.down ? -order : order;
      });
    }
    for (const [key, head] of this.heads) head.setAttribute("aria-sort", sort?.key === key ? (sort.down ? "descending" : "ascending") : "none");
    const count = rows.length;
    if (!this.all) rows = rows.slice(0, this.limit);
    this.body.replaceChildren(...rows.map((row) => el("tr", {}, ...this.columns.map((column) => this.cell(column, row)))));
    this.search.hidden = this.rows.length <= this.limit;
    this.more.hidden = count <= this.limit;
    this.more.textContent = this.all ? `Show the first ${this.limit}` : `Show all ${count}`;
  }
  cell(column, row) {
    const value = row[column.key], error = column.error ? row[column.error] : null;
    const full = value === null || value === undefined ? "" : String(value);
    const attributes = { class: column.num ? "num" : null, "data-column": column.key, "data-value": full };
    if (column.num && full) attributes.title = error === null ? full : `${full} ± ${error}`;
    if (column.cell) return el("td", attributes, column.cell(row));
    const text = column.text ? column.text(value) : column.num ? number(value) : full || "–";
    const parts = column.part && typeof value === "number" ? [bar(column.part(value), value < 0)] : [];
    return el("td", attributes, ...parts, text, error ? el("span", { class: "pm" }, ` ± ${number(error, 2)}`) : null);
  }
}

function bar(share, minus) {
  const of = el("span", { class: minus ? "of minus" : "of", "aria-hidden": "true" });
  of.style.width = `${Math.max(1, Math.round(48 * share))}px`;
  return of;
}
