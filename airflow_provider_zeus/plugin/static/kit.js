// What all views share: elements, figures, badges, tables, charts, theme, fetching. What comes from outside is only
// ever set as text. Figures arrive with their unit and their exact value; nothing is converted here.

const asked = new URLSearchParams(location.search);
export const dagId = asked.get("dag_id"); // null: the page of all jobs
export const runId = asked.get("run_id"); // null: the page of a DAG
export const jobId = asked.get("job_id"); // null: the first

export const byId = (id) => document.getElementById(id);

export function element(name, text, attributes = {}, ...children) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== "") made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** The content of <template id="..."> of the page, to be filled in. */
export function template(id) {
  return byId(id).content.cloneNode(true);
}

// ---------------------------------------------------------------- addresses: relative, so they hold below a path prefix

/** Our page of a DAG, or of one of its runs. */
export function pageAddress(dag, { run = null, job = null } = {}) {
  const query = new URLSearchParams(dag === null ? {} : { dag_id: dag });
  if (run !== null) query.set("run_id", run);
  if (job) query.set("job_id", job);
  return `page?${query}`;
}

/** A data route; `parts` are encoded, values that are null are left out: api("dags", dagId, "costs", {limit: 5}). */
export function api(...parts) {
  const query = new URLSearchParams();
  if (typeof parts.at(-1) === "object") {
    for (const [key, value] of Object.entries(parts.pop())) if (value !== null && value !== "") query.set(key, value);
  }
  return `api/${parts.map(encodeURIComponent).join("/")}${query.size ? `?${query}` : ""}`;
}

/** An address of Airflow's own UI, two folders above ours: airflow("dags", dagId, "runs", runId). */
export function airflow(...parts) {
  return `../${parts.map(encodeURIComponent).join("/")}`;
}

/**
 * Links out of the page (target _top) and downloads. Airflow shows the page in a sandbox that forbids a frame both, so
 * the page around it, which is of the same origin, follows them.
 */
export function leaveSandbox() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[target=_top], a[download]");
    if (!link || parent === window || event.button !== 0) return;
    const outside = outerDocument();
    if (!outside) return;
    event.preventDefault();
    const twin = outside.createElement("a");
    twin.href = link.href;
    if (link.hasAttribute("download")) twin.download = link.download;
    else if (event.ctrlKey || event.metaKey || event.shiftKey) twin.target = "_blank";
    outside.body.append(twin);
    twin.click();
    twin.remove();
  });
}

function outerDocument() {
  try {
    return top.document;
  } catch {
    return null; // shown inside a page of another origin
  }
}

// ---------------------------------------------------------------- fetching

const PROBLEMS = {
  401: "Your login has ended. Log in to Airflow again and reload this page.",
  403: "You may not see this.",
  404: "There is no such DAG or run.",
};

/** JSON of a data route. Throws an Error whose message is for people. */
export async function fetchJson(address, options = {}) {
  let response;
  try {
    const headers = { Accept: "application/json", ...options.headers };
    response = await fetch(address, { credentials: "same-origin", ...options, headers });
  } catch {
    throw new Error("Airflow cannot be reached. Reload this page when it runs again.");
  }
  let body = {};
  try {
    body = await response.json();
  } catch {
    // no JSON: a proxy in between answered
  }
  if (response.ok) return body;
  const refused = Array.isArray(body.detail) ? body.detail.map(({ loc, msg }) => `${loc.at(-1)}: ${msg}`).join("; ") : null;
  throw new Error(body.problem ?? refused ?? PROBLEMS[response.status] ?? `This cannot be read (status ${response.status}).`);
}

/** The one line in place of the view: loading, empty, or a problem. null: the view is there. */
export function say(text, isProblem = false) {
  if (text !== null) byId("message").textContent = text;
  byId("message").classList.toggle("problem", isProblem);
  byId("message").hidden = text === null;
  byId("content").hidden = text !== null;
}

/** Draws `answer`, or says its note. `showIn(content, answer)` fills the view. */
export function present(answer, showIn) {
  if (answer.note) return say(answer.note);
  say(null);
  showIn(byId("content"), answer);
  return undefined;
}

// ---------------------------------------------------------------- figures and badges

/** A figure for people, exact on hover; `name` is the element. */
export function figure(name, { text, exact }, attributes = {}) {
  return element(name, text, { title: exact, ...attributes });
}

export function figureCell(value) {
  return figure("td", value, { class: "number" });
}

export function badge(text, kind, title) {
  return element("span", text, { class: `badge ${kind}`, title });
}

export function stateBadge(state, text, title) {
  return badge(text, `state-${state}`, title);
}

/** Where figures come from; nothing while nothing was measured. */
export function sourceBadges(source) {
  return source.text ? [badge(source.text, source.kind, source.why)] : [];
}

const SIGNS = { saved: "✓", lost: "✗", even: "≈", unknown: "?", running: "…" };

/** A Verdict: a sentence with a sign before it. */
export function verdictLine({ kind, word, text }) {
  const sign = element("span", SIGNS[kind], { class: "sign", "aria-hidden": "true" });
  return element("p", null, { class: `verdict verdict-${kind}` }, sign, element("strong", ` ${word}: `), text);
}

/** A Tile: one figure with its name, badge and note. */
export function tileItem({ name, figure: value, note, kind, source }) {
  const head = element("div", null, { class: "tile-name" }, name, " ", ...sourceBadges(source));
  return element("li", null, { class: `tile ${kind}` },
    head, figure("div", value, { class: "tile-figure" }), element("div", note, { class: "note" }));
}

export function showList(list, texts) {
  list.replaceChildren(...texts.map((text) => element("li", text)));
  list.hidden = texts.length === 0;
}

/** "Job ..." with a choice of several. */
export function showJobs(jobs, chosen) {
  const options = jobs.map((job) => element("option", job, { value: job }));
  for (const option of options) option.selected = option.value === chosen;
  byId("job").replaceChildren(...options);
  byId("job-choice").hidden = jobs.length < 2;
}

// ---------------------------------------------------------------- tables

/** A models.Table: caption, column and row headers. */
export function table({ caption, columns, numeric, rows }) {
  const kind = (i) => (numeric[i] ? { class: "number" } : {});
  const head = element("tr", null, {}, ...columns.map((text, i) => element("th", text, { scope: "col", ...kind(i) })));
  const lines = rows.map((row) =>
    element("tr", null, {}, ...row.map((text, i) =>
      i ? element("td", text, kind(i)) : element("th", text, { scope: "row", ...kind(i) }))));
  const made = element("table", null, {}, element("caption", caption, { class: "unseen" }));
  made.append(element("thead", null, {}, head), element("tbody", null, {}, ...lines));
  return element("div", null, { class: "table-box", role: "region", "aria-label": caption, tabindex: "0" }, made);
}

// ---------------------------------------------------------------- charts

const charts = new Map(); // box -> [option, chart drawn]
const libraryArrived = document.readyState === "complete" || new Promise((arrived) => {
  addEventListener("load", arrived, { once: true });
});
const MISSING =
  "The chart library is missing here; “pip install -e .” or “make demo” in the provider's checkout brings it. " +
  "The table is complete without it.";

/** Draws an ECharts option in `box`, follows theme and size. Returns whether it could be drawn. */
export async function draw(box, option, text) {
  await libraryArrived;
  box.hidden = !option || !window.echarts;
  if (box.hidden) {
    forget(box);
    return !option;
  }
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", text);
  const old = charts.get(box)?.[1];
  charts.set(box, [option, old]);
  if (old) set(old, option);
  else {
    redraw(box);
    sizes.observe(box);
  }
  return true;
}

/** A models.Chart with its heading, its note and its table: figure element, to be appended where it belongs. */
export function chartBlock(chart, { open = false, name = "" } = {}) {
  const block = element("figure", null, { class: `chart-block ${name}`, "data-title": chart.title });
  const more = element("details", null, open ? { open: "open" } : {}, element("summary", "As a table"), element("div"));
  const heading = element("h3", chart.title);
  block.append(heading, element("div", null, { class: "chart" }), element("figcaption", null, { class: "note" }), more);
  updateChart(block, chart);
  return block;
}

/** New data for a block; what is unfolded stays so. */
export function updateChart(block, { option, text, note, table: rows }) {
  const remark = block.querySelector("figcaption");
  const more = block.querySelector("details");
  remark.textContent = note;
  more.hidden = !rows;
  if (rows) more.lastChild.replaceWith(table(rows));
  draw(block.querySelector(".chart"), option, text).then((drawn) => {
    if (!drawn) remark.textContent = `${MISSING} ${note}`;
  });
}

/** Before a chart's box is thrown away. */
export function forget(box) {
  charts.get(box)?.[1]?.dispose();
  charts.delete(box);
  sizes.unobserve(box);
}

/** Of all charts below an element. */
export function forgetIn(parent) {
  for (const box of [...charts.keys()]) if (parent.contains(box)) forget(box);
}

const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) charts.get(target)?.[1]?.resize();
});

function redraw(box) {
  const [option, old] = charts.get(box);
  old?.dispose();
  const chart = window.echarts.init(box, chartTheme());
  charts.set(box, [option, chart]);
  set(chart, option);
}

function set(chart, option) {
  const tip = (points) => [points].flat().find((point) => point.data?.tip)?.data.tip ?? "";
  chart.setOption({ ...option, tooltip: { ...option.tooltip, formatter: tip } }, { notMerge: true });
}

function chartTheme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const text = { color: colour("--text") };
  const axis = {
    axisLine: { lineStyle: { color: colour("--quiet") } },
    axisTick: { lineStyle: { color: colour("--quiet") } },
    axisLabel: text,
    nameTextStyle: text,
    splitLine: { lineStyle: { color: colour("--line") } },
  };
  return {
    backgroundColor: "transparent",
    textStyle: { fontFamily: style.fontFamily },
    categoryAxis: { ...axis, splitLine: { show: false } },
    valueAxis: axis,
    logAxis: axis,
    timeAxis: axis,
    legend: { textStyle: text, pageTextStyle: text, pageIconColor: colour("--text"), inactiveColor: colour("--quiet") },
    scatter: { label: { color: colour("--text") } },
    line: { label: { color: colour("--text") }, endLabel: { color: colour("--text") } },
    markLine: { label: { color: colour("--text") } },
    markArea: { label: { color: colour("--text") } },
    dataZoom: { textStyle: text, borderColor: colour("--line") },
    tooltip: { backgroundColor: colour("--tip"), borderColor: colour("--line"), textStyle: text },
  };
}

// ---------------------------------------------------------------- theme: Airflow's, also when it changes

function airflowTheme() {
  try {
    const classes = parent.document.documentElement.classList;
    if (parent !== window && classes.contains("dark")) return "dark";
    if (parent !== window && classes.contains("light")) return "light";
  } catch {
    // shown inside a page of another origin
  }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export function followTheme() {
  const apply = () => {
    const theme = airflowTheme();
    if (document.documentElement.dataset.theme === theme) return;
    document.documentElement.dataset.theme = theme;
    for (const box of charts.keys()) redraw(box);
  };
  apply();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  try {
    new MutationObserver(apply).observe(parent.document.documentElement, { attributeFilter: ["class"] });
  } catch {
    // another origin: the system's own preference counts
  }
}
